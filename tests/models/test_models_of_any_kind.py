"""Whatever module a user has: it is audited, or one sentence says why not. Never a traceback.

An audit turns what an attack did not expect into a failed cell. That net must not be what holds here, so
everything that an audit calls is watched, and an exception other than seepage's own fails the test.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import seepage
from seepage.attacks import ATTACKS, Attack
from seepage.core.errors import ModelError, SeepageError
from seepage.engine import cell as engine_cell
from seepage.engine import source as engine_source
from seepage.engine.cell import run_cell
from seepage.engine.prepare import prepare
from seepage.engine.prepared import Prepared
from seepage.engine.spec import parse_spec
from seepage.record import Cell

from .odd_models import ODD_MODELS, TEXT_MODELS, mlp

ATTACKS_TRIED: list[dict[str, Any]] = [
    {"name": "analytic_extraction"},
    {"name": "exact_extraction"},
    {"name": "inverting_gradients", "steps": 2},
    {"name": "recursive_inversion", "max_iterations": 20},
    {"name": "april"},
    {"name": "trap_weights"},
    {"name": "imprint", "bins": 16},
    {"name": "class_fishing"},
]
"""Every way of working once: reading, peeling, searching, solving layer by layer, crafting, inserting."""

REFUSED = {
    "fixed precision": "cannot be run in float32",
    "list of strings": "returned a list",
    "extra dimension": r"returned shape \(2, 1, 10\)",
    "spatial logits": r"returned shape \(2, 10, 1, 1\)",
    "returns NaN": "returned NaN",
    "meta device": "meta device",
    "scripted": "TorchScript",
    "traced": "TorchScript",
    "quantised": "is quantised",
    "complex": "'first.weight' is complex",
    "only complex": "'first.weight' is complex",
    "second argument": "missing 1 required positional argument: 'mask'",
    "too few outputs": r"returned shape \(2, 3\)",
}
"""Before anything runs, in one sentence."""

AS_PLAIN = [
    "float64",
    "data parallel",
    "compiled",
    "compiled data parallel",
    "compiled inside",
    "averaged",
    "hugging face",
    "dict of logits",
    "tuple",
    "in-place activation",
    "unused parameters",
    "log-softmax",
    "inference mode",
    "dropout",
]
"""The plain network with the same weights in another guise: the same figures."""

NOTHING_SENT = ["all layers frozen", "no parameters", "buffers only"]


@pytest.fixture
def unexpected(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """Exceptions other than seepage's own that any part of a cell raised, caught later or not."""
    seen: list[BaseException] = []

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except SeepageError:
                raise
            except Exception as error:
                seen.append(error)
                raise

        return call

    for module, name in ((engine_source, "play"), (engine_cell, "score")):
        monkeypatch.setattr(module, name, watched(getattr(module, name)))
    for name in ("run", "next_model"):
        monkeypatch.setattr(Attack, name, watched(getattr(Attack, name)))
    for kind in {type(build()) for build in ATTACKS.values()}:
        monkeypatch.setattr(kind, "check", watched(kind.check))
    return seen


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def prepared_audit(name: str, attacks: list[dict[str, Any]] = ATTACKS_TRIED, **protocol: Any) -> Prepared:
    text = name in TEXT_MODELS
    torch.manual_seed(0)
    model = (TEXT_MODELS if text else ODD_MODELS)[name]()
    spec = parse_spec(
        {
            "model": name,
            "data": {"name": "arrays", "modality": "text"} if text else "digits",
            "attacks": attacks,
            "threat": {"base": "malicious_server", "grant": ["auxiliary_data"], "rounds": 6},
            "protocol": {"batch_size": 2, **protocol},
            "seeds": [3],
            "public_examples": 32,
            "device": "cpu",
        }
    )
    return prepare(spec, model=model, data=_texts() if text else None)


def _texts() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(40, (300, 10), generator=generator), torch.randint(2, (300,), generator=generator)


def cells_of(prepared: Prepared) -> dict[str, Cell]:
    return {ref.name: run_cell(prepared, ref, 3)[0] for ref in prepared.refs}


def figures(cell: Cell) -> list[float]:
    return [value for example in cell.examples for value in example.scores.values()]


def one_sentence(text: str) -> bool:
    """The reason, and behind a colon or semicolon the remedy."""
    return bool(re.fullmatch(r"[^\n]+[:;] [^\n]+\.", text)) and "Traceback" not in text


def _check(cells: dict[str, Cell], unexpected: list[BaseException]) -> None:
    assert not unexpected
    for name, cell in cells.items():
        if cell.status == "done":
            scores = torch.tensor(figures(cell))
            assert len(scores), name
            # an exact copy has an infinite PSNR, and that is right
            assert not scores.isnan().any() and not (scores == -torch.inf).any(), name
        else:
            assert one_sentence(cell.reason), (name, cell.reason)


@pytest.mark.parametrize("name", [name for name in (*ODD_MODELS, *TEXT_MODELS) if name not in REFUSED])
def test_a_model_runs_or_says_why_an_attack_does_not(name: str, unexpected: list[BaseException]) -> None:
    cells = cells_of(prepared_audit(name))
    _check(cells, unexpected)
    passive = [cell for attack, cell in cells.items() if attack != "imprint"]
    if name in NOTHING_SENT:
        assert all(cell.status != "done" for cell in passive)
    elif name != "NaN gradients":
        assert cells["prior_only"].status == cells["inverting_gradients"].status == "done"


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_cannot_be_audited_is_refused_in_one_sentence(name: str) -> None:
    with pytest.raises(ModelError, match=REFUSED[name]) as refused:
        prepared_audit(name)
    assert one_sentence(str(refused.value))


@pytest.mark.parametrize("name", AS_PLAIN)
def test_another_guise_of_a_network_gives_the_same_figures(name: str) -> None:
    reading = [{"name": a} for a in ("analytic_extraction", "exact_extraction", "trap_weights", "imprint")]
    plain, other = cells_of(prepared_audit("plain", reading)), cells_of(prepared_audit(name, reading))
    for attack in ("analytic_extraction", "exact_extraction", "trap_weights", "imprint"):
        exact = [[e.scores["exact"] for e in cells[attack].examples] for cells in (plain, other)]
        assert exact[0] == exact[1] == [1.0, 1.0], attack
        assert plain[attack].claims_right == other[attack].claims_right


@pytest.mark.parametrize(
    ("name", "least"), [("float16", 50.0), ("bfloat16", 30.0), ("mixed precision", 30.0)]
)
def test_half_precision_shows_as_much_as_its_rounding_leaves(name: str, least: float) -> None:
    """x = G_w / G_b has about the relative error of its two factors, 2^-11 or 2^-8: 66 and 48 dB at best."""
    prepared = prepared_audit(name, [{"name": "analytic_extraction"}])
    cell = cells_of(prepared)["analytic_extraction"]
    assert all(example.scores["psnr"] >= least for example in cell.examples)
    played = prepared.draw(3)[0](0)[0]
    assert played.inputs.dtype == prepared.dtype != torch.float32


@pytest.mark.parametrize(
    "name", ["float64", "bfloat16", "low-rank adapters", "old weight norm", "batch norm"]
)
def test_several_local_steps_in_train_mode(name: str, unexpected: list[BaseException]) -> None:
    protocol = {"algorithm": "fedavg", "local_epochs": 2, "momentum": 0.5, "batch_norm": "train"}
    _check(cells_of(prepared_audit(name, **protocol)), unexpected)


def test_a_frozen_layer_is_not_read_and_what_comes_after_it_is() -> None:
    cell = cells_of(prepared_audit("first layer frozen"))["analytic_extraction"]
    assert (cell.status, cell.space) == ("done", "3")
    named = [{"name": "analytic_extraction", "layer": "1"}]
    reason = cells_of(prepared_audit("first layer frozen", named))["analytic_extraction"].reason
    assert reason.startswith("layer '1' is frozen, so clients send no gradient of it: ")


def test_the_examples_stay_as_they_are_when_the_model_writes_into_its_input() -> None:
    prepared = prepared_audit("input changed in place", [{"name": "prior_only"}])
    batch = prepared.draw(3)[0](0)[0]
    before = batch.inputs.clone()
    prepared.model(3)(batch.inputs)
    assert torch.equal(batch.inputs, before)


def test_the_users_own_module_is_left_alone() -> None:
    network = nn.DataParallel(nn.Sequential(torch.compile(mlp()), nn.Embedding(3, 2, sparse=True)))
    before = [type(module) for module in network.modules()]
    with pytest.raises(ModelError):  # an embedding does not take logits
        seepage.audit(model=network, data="digits")
    assert [type(module) for module in network.modules()] == before
    assert network.module[1].sparse


def test_a_module_of_ones_own_by_name_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from seepage.cli import app

    (tmp_path / "half_network.py").write_text(
        "from torch import nn\n"
        "def build():\n"
        "    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))\n"
        "    return nn.DataParallel(net.double())\n"
    )
    (tmp_path / "audit.toml").write_text(
        'model = "half_network:build"\ndata = "digits"\nattacks = ["analytic_extraction"]\nseeds = [3]\n'
        "[protocol]\nbatch_size = 2\n"
    )
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["audit", "audit.toml", "--out", "run"])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert seepage.open_log(tmp_path / "run").scores("analytic_extraction")["exact"] == 1.0
