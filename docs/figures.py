"""The figures and numbers on the pages of attacks: `python docs/figures.py [WORD ...]` makes them anew.

Each setting is one small audit on data that ships inside the dependencies, seed 95018, on which nothing was
chosen. What came out is drawn by the run itself (originals above what was rebuilt); texts and tables are
quoted. Searches get a few seconds: their figures show how they work, not how far they get.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

import seepage
from seepage.core.types import InputSpec
from seepage.data import load_data
from seepage.engine.run import run_audit
from seepage.engine.spec import read_spec
from seepage.record import summarise
from seepage.report.columns import columns_line
from seepage.report.sentences import server_s_view
from seepage.starter import starting_files

HERE = Path(__file__).parent
SEED = 95018
FEW = {"budget": 10.0}
AUXILIARY = {"base": "malicious_server", "grant": ["auxiliary_data"]}
FISHING = ("class_fishing", "feature_fishing", "one_shot_binary_fishing", "binary_fishing")


def behind_convolutions(spec: InputSpec) -> nn.Module:
    """Two convolutions with pooling, then dense layers of which the first is read."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4096, 400),
        nn.ReLU(),
        nn.Linear(400, spec.num_classes),
    )


def pooled(spec: InputSpec) -> nn.Module:
    """A convolution with pooling, then dense layers, for pictures of any size."""
    channels, height, width = spec.shape
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (height // 2) * (width // 2), 200),
        nn.ReLU(),
        nn.Linear(200, spec.num_classes),
    )


def own_kernels(spec: InputSpec) -> nn.Module:
    """One convolution with filters enough for three clients, then dense layers."""
    channels, height, width = spec.shape
    return nn.Sequential(
        nn.Conv2d(channels, 3 * (channels + 1), 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(3 * (channels + 1) * height * width, 200),
        nn.ReLU(),
        nn.Linear(200, spec.num_classes),
    )


def knows_digits(spec: InputSpec) -> nn.Module:
    """A linear model that was trained on the first half of scikit-learn's digits."""
    data = load_data("digits")
    model = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(spec.shape), spec.num_classes))
    half = data.batch(torch.arange(len(data) // 2))
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(200):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(half.inputs), half.labels).backward()
        optimiser.step()
    return model


SETTINGS: dict[str, dict[str, Any]] = {
    "six photographs, MLP": {
        "model": "mlp", "data": "photos", "batch_size": 6,
        "attacks": ["analytic_extraction", "exact_extraction", {"name": "inverting_gradients", **FEW}],
    },
    "one photograph, LeNet": {
        "model": "lenet_zhu", "data": "photos", "batch_size": 1,
        "attacks": [{"name": "deep_leakage", **FEW}, {"name": "idlg", **FEW}, "recursive_inversion"],
    },
    "one photograph, vision transformer": {
        "model": "vit", "data": "photos", "batch_size": 1, "attacks": ["patch_embedding"],
    },
    "one photograph, vision transformer, first block without layer norm and residual": {
        "model": {"name": "vit", "patch_size": 8, "dim": 256, "norm_first_block": False,
                  "residual_first_block": False, "dtype": "float64"},
        "data": "photos", "batch_size": 1, "attacks": ["april"],
    },
    "four photographs, convolutions": {
        "model": behind_convolutions, "data": "photos", "batch_size": 4,
        "attacks": ["feature_inversion"],
    },
    "one photograph, ResNet-18 with batch norm": {
        "model": "resnet18", "data": "photos", "batch_size": 1,
        "attacks": [{"name": "see_through_gradients", **FEW}],
    },
    "24 faces, MLP, crafted weights": {
        "model": "mlp", "data": "faces", "batch_size": 24, "threat": AUXILIARY,
        "attacks": ["trap_weights", "quantile_traps", "shifted_rows", "sparse_traps",
                    "slow_drift", "imprint"],
    },
    "eight digits, MLP, noise of 0.01, crafted weights": {
        "model": "mlp", "data": "digits", "batch_size": 8, "threat": AUXILIARY, "adaptive": False,
        "defenses": [{"name": "gaussian_noise", "sigma": 0.01, "seed": SEED}], "attacks": ["amplification"],
    },
    "eight digits, MLP, fished": {
        "model": "mlp", "data": "digits", "batch_size": 8, "threat": AUXILIARY,
        "attacks": [*({"name": name, "inner": "analytic_extraction"} for name in FISHING),
                    "moderate_fishing"],
    },
    "ten clients with eight digits each, fished": {
        "model": "mlp", "data": "digits", "batch_size": 8, "clients": 10, "threat": AUXILIARY,
        "attacks": [{"name": "cross_device_fishing", "inner": "analytic_extraction"}],
    },
    "three clients with four digits each, secure sum": {
        "model": "mlp", "data": "digits", "batch_size": 4, "clients": 3, "aggregation": "secure_sum",
        "threat": {"base": "malicious_server_secure_aggregation",
                   "grant": ["choose_clients", "different_models"]},
        "attacks": ["model_inconsistency", "gradient_disaggregation"],
    },
    "three clients with eight faces each, secure sum, convolution": {
        "model": own_kernels, "data": "faces", "batch_size": 8, "clients": 3, "aggregation": "secure_sum",
        "threat": {"base": "malicious_server_secure_aggregation",
                   "grant": ["different_models", "auxiliary_data"]},
        "attacks": ["loki"],
    },
    "three clients with eight faces each, secure sum, convolutions and pooling": {
        "model": pooled, "data": "faces", "batch_size": 8, "clients": 3, "aggregation": "secure_sum",
        "threat": {"base": "malicious_server_secure_aggregation", "grant": ["auxiliary_data"]},
        "attacks": ["scale_mia"],
    },
    "32 digits, trained linear model": {
        "model": knows_digits, "data": "digits", "batch_size": 32,
        "threat": {"base": "honest_but_curious", "grant": ["auxiliary_data"]},
        "attacks": ["class_representatives"],
    },
    "eight digits, MLP, half of the update pruned": {
        "model": "mlp", "data": "digits", "batch_size": 8, "defenses": [{"name": "pruning", "share": 0.5}],
        "attacks": ["exact_extraction"],
    },
}  # fmt: skip
EXAMPLES: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "four notes of a clinic, small GPT-2 (`seepage init --example text`)": (
        "text", ["embedding_rows", "exact_text", {"name": "tag", **FEW}, {"name": "lamp", **FEW}], {}
    ),
    "all 24 notes of a clinic, small GPT-2, crafted weights (`seepage init --example text`)": (
        "text", ["decepticons"], {"protocol": {"batch_size": 24}, "threat": "malicious_server"}
    ),
    "eight patients of a diabetes study, MLP 100-100 (`seepage init --example table`)": (
        "table", ["exact_table", {"name": "tableak", **FEW}], {}
    ),
}  # fmt: skip


def main(wanted: list[str]) -> None:
    """All settings, or those whose words are given."""
    numbers = HERE / "attacks" / "figures.json"
    found = json.loads(numbers.read_text(encoding="utf-8")) if numbers.exists() else {}
    for title, asked in SETTINGS.items():
        if wanted and not any(word in title for word in wanted):
            continue
        with tempfile.TemporaryDirectory() as folder:
            log = seepage.audit(**asked, seeds=[SEED], out=folder, engine="here")
            for summary in summarise(log):
                found |= _kept(title, summary, log.folder.path)
        _write(numbers, found)
    for title, (kind, attacks, changed) in EXAMPLES.items():
        if wanted and not any(word in title for word in wanted):
            continue
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            for name, text in starting_files("audit.toml", example=kind).items():
                Path(name).write_text(text, encoding="utf-8")
            spec = read_spec(Path("audit.toml"), attacks=attacks, seeds=[SEED], budget=None, **changed)
            log = run_audit(spec, out=Path("run"), engine="here")
            for summary in summarise(log):
                found |= _kept(title, summary, log.folder.path)
                own = [cell for cell in log.cells if cell.attack == summary.attack]
                if said := server_s_view(log, own) or [columns_line([summary])]:
                    found.get(summary.attack.name, {})["quoted"] = [line for line in said if line]
        _write(numbers, found)


def _write(file: Path, found: dict[str, Any]) -> None:
    file.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _elsewhere(name: str, title: str) -> bool:
    """Shown in another setting."""
    return (name == "prior_only" and "six" not in title) or (name == "exact_extraction" and "pruned" in title)


def _kept(title: str, summary: Any, folder: Path) -> dict[str, Any]:
    name = summary.attack.name
    if summary.status != "done" or _elsewhere(name, title):
        print(f"{title}: {name}: {summary.status}. {summary.reason}")
        return {}
    for picture in folder.glob(f"pictures/{summary.attack.key}-seed*.png"):
        shutil.copy(picture, HERE / "attacks" / f"{name}.png")
    main_score = next((m for m in ("psnr", "token_accuracy", "rmse") if m in summary.scores), "")
    return {
        name: {
            "setting": title,
            "exact": summary.exact,
            "examples": summary.examples,
            "claims": [summary.claims_right, summary.claims],
            "score": main_score,
            "value": summary.scores[main_score].value if main_score else None,
            "guess": summary.baseline[main_score].value if main_score in summary.baseline else None,
        }
    }


if __name__ == "__main__":
    main(sys.argv[1:])
