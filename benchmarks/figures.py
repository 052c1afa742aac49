"""Figures on fixed seeds, to see that a change of the code's structure changed none of them.

    python benchmarks/figures.py --write benchmarks/figures.json      # before the change
    python benchmarks/figures.py --compare benchmarks/figures.json    # after it

Every setting is one `seepage audit FILE --json` on data that ships inside the dependencies. What is kept
of an attack: how many examples it read exactly, what it claimed, and its mean scores. They are compared to a
relative 1e-6 (the order of float32 sums may differ between machines); counts must be equal.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HEAD = "seeds = [0, 1]\ndevice = 'cpu'\n"
SEARCH = "steps = 20"
SETTINGS = {
    "digits, mlp, B = 8": """
        model = "mlp"
        data = "digits"
        attacks = ["analytic_extraction", "exact_extraction"]
        """,
    "faces, mlp, B = 32": """
        model = "mlp"
        data = "faces"
        attacks = ["analytic_extraction", "exact_extraction"]
        protocol = {batch_size = 32}
        """,
    "tumours, mlp, B = 8": """
        model = "mlp"
        data = "breast_cancer"
        attacks = ["analytic_extraction", "exact_extraction", "recursive_inversion"]
        """,
    "tumours, 20 clients, secure sum": """
        model = "mlp"
        data = "breast_cancer"
        attacks = ["analytic_extraction", "exact_extraction"]
        protocol = {batch_size = 4, clients = 20, aggregation = "secure_sum"}
        """,
    "digits, 5 clients, FedAvg of 3 steps": f"""
        model = "mlp"
        data = "digits"
        attacks = ["analytic_extraction", "exact_extraction", {{name = "inverting_gradients", {SEARCH}}}]
        protocol = {{batch_size = 4, clients = 5, algorithm = "fedavg", local_steps = 3, lr = 0.01}}
        """,
    "digits, 3 clients, mean": """
        model = "mlp"
        data = "digits"
        attacks = ["analytic_extraction", "exact_extraction"]
        protocol = {batch_size = 4, clients = 3, aggregation = "mean"}
        """,
    "digits, clipping and noise": """
        model = "mlp"
        data = "digits"
        attacks = ["analytic_extraction", "exact_extraction"]
        defenses = [{name = "gaussian_noise", sigma = 1e-4}, {name = "clipping", norm = 1.0}]
        """,
    "digits, dp_sgd": """
        model = "mlp"
        data = "digits"
        attacks = ["analytic_extraction"]
        defenses = [{name = "dp_sgd", clip = 1.0, sigma = 0.5}]
        """,
    "digits, pruning, adaptive server": """
        model = "mlp"
        data = "digits"
        attacks = ["exact_extraction"]
        defenses = [{name = "pruning", share = 0.5}]
        """,
    "faces, traps, B = 24": """
        model = "mlp"
        data = "faces"
        attacks = ["trap_weights", "quantile_traps", "imprint"]
        threat = "malicious_server"
        protocol = {batch_size = 24}
        """,
    "digits, LeNet, one picture": f"""
        model = "lenet_zhu"
        data = "digits"
        attacks = [{{name = "deep_leakage", {SEARCH}}}, {{name = "idlg", {SEARCH}}},
                   {{name = "inverting_gradients", {SEARCH}}}, {{name = "see_through_gradients", {SEARCH}}}]
        protocol = {{batch_size = 1}}
        """,
    "photos, vision transformer": """
        model = "vit"
        data = "photos"
        attacks = ["april", "patch_embedding", "analytic_extraction"]
        protocol = {batch_size = 1}
        """,
    "digits, fishing": """
        model = "mlp"
        data = "digits"
        attacks = [{name = "class_fishing", inner = "analytic_extraction"},
                   {name = "feature_fishing", inner = "analytic_extraction"},
                   {name = "one_shot_binary_fishing", inner = "analytic_extraction"},
                   {name = "binary_fishing", inner = "analytic_extraction"}]
        threat = {base = "malicious_server", grant = ["auxiliary_data"]}
        protocol = {batch_size = 8}
        """,
}
TOLERANCE = 1e-6


def figures_of(name: str) -> dict[str, float | str]:
    """One setting's figures, by name."""
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "audit.toml"
        # The shared keys come first: what follows a table would belong to it.
        spec.write_text(HEAD + "\n".join(line.strip() for line in SETTINGS[name].splitlines()))
        command = [sys.executable, "-m", "seepage", "audit", "audit.toml", "--out", "run", "--json"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise SystemExit(f"{name}: {done.stderr[-800:]}")
    found: dict[str, float | str] = {}
    for attack in json.loads(done.stdout)["attacks"]:
        key = f"{name}: {attack['key']}"
        found[f"{key}, status"] = attack["status"]
        for count in ("exact", "claims", "claims_right"):
            found[f"{key}, {count}"] = attack[count]
        for metric, estimate in attack["scores"].items():
            found[f"{key}, mean {metric}"] = estimate["value"]
    return found


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What is not equal, one line each."""
    lines = []
    for key in sorted({*before, *after}):
        one, other = before.get(key, "missing"), after.get(key, "missing")
        numbers = isinstance(one, int | float) and isinstance(other, int | float)
        equal = math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE) if numbers else one == other
        if not equal:
            lines.append(f"{key}: {one} before, {other} after")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--compare", type=Path)
    wanted = parser.parse_args()
    found: dict[str, float | str] = {}
    for number, name in enumerate(SETTINGS, start=1):
        print(f"{number} of {len(SETTINGS)}: {name}", file=sys.stderr)
        found |= figures_of(name)
    if wanted.write is not None:
        wanted.write.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{len(found)} figures written to {wanted.write}")
    if wanted.compare is not None:
        lines = differences(json.loads(wanted.compare.read_text()), found)
        print("\n".join(lines) or f"{len(found)} figures, all equal")
        raise SystemExit(bool(lines))


if __name__ == "__main__":
    main()
