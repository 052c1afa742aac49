"""A finished cell is served only where nothing that it depends on has changed: kinds of edits, one by one."""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import seepage
from seepage.core.errors import LogError
from seepage.engine.cell import run_cell
from seepage.engine.identity.sources import Source, parse
from seepage.engine.run import run_audit
from seepage.engine.spec import parse_spec
from seepage.record import AuditLog

SPEC: dict[str, Any] = {
    "model": "mine:build",
    "data": "digits",
    "attacks": ["analytic_extraction"],
    "defenses": [{"name": "clipping", "norm": 1.0}],
    "adaptive": False,
    "seeds": [0],
    "protocol": {"batch_size": 2},
}
CELLS = 2  # the baseline's and the attack's

MINE = """
from torch import nn

import mine_parts  # a module of one's own, with another one behind it


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.last = nn.Linear(64, width), nn.Linear(width, 10)

    def forward(self, x):
        return self.last(mine_parts.activation(self.first(x.flatten(1))))


def build(spec):
    return Net(mine_parts.WIDTH)
"""
PARTS = """
import mine_deeper
WIDTH = 16


def activation(x):
    return mine_deeper.scale() * x.relu()
"""
DEEPER = """
def scale():
    return 1.0
"""


@pytest.fixture(autouse=True)
def _modules(tmp_path: Path) -> Iterator[None]:
    """The user's modules, in the folder that the audit is started from."""
    write(mine=MINE, mine_parts=PARTS, mine_deeper=DEEPER)
    yield
    forget()


def write(**modules: str) -> None:
    for name, text in modules.items():
        Path(f"{name}.py").write_text(text, encoding="utf-8")
    forget()


def forget() -> None:
    """As in a new process, where everything is imported anew."""
    for name in ("mine", "mine_parts", "mine_deeper"):
        sys.modules.pop(name, None)
    for cached in Path("__pycache__").glob("mine*"):
        cached.unlink()
    importlib.invalidate_caches()


@pytest.fixture
def cells_run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run an audit into its default folder and count the cells that were computed."""

    def count(change: dict[str, Any] | None = None, **given: Any) -> int:
        ran: list[int] = []

        def counting(prepared: Any, ref: Any, seed: int, shared: Any) -> Any:
            ran.append(seed)
            return run_cell(prepared, ref, seed, shared)

        with monkeypatch.context() as patched:
            patched.setattr("seepage.engine.work.run_cell", counting)
            log = run_audit(parse_spec({**SPEC, **(change or {})}), **given)
        assert log.missing == 0
        return len(ran)

    return count


def one_line_more(module: str) -> Callable[[bytes, str, bool], Source]:
    """`parse` for a disk on which one module has one line more."""

    def edited(text: bytes, name: str, is_package: bool) -> Source:
        return parse(text + b"\nEDITED = 1\n" if name == module else text, name, is_package)

    return edited


def test_unchanged_code_resumes_even_with_another_layout_and_comments(cells_run: Callable[..., int]) -> None:
    assert cells_run() == CELLS
    assert cells_run() == 0
    write(mine="# a comment\n" + MINE.replace("Net(mine_parts.WIDTH)", "Net( mine_parts.WIDTH )  # wide"))
    Path("README.md").write_text("edited")
    Path("unrelated.py").write_text("x = 1")
    assert cells_run() == 0
    assert cells_run({"title": "another title"}, out=next(Path("seepage-runs").iterdir())) == 0


@pytest.mark.parametrize(
    "edit",
    [
        {"mine": MINE.replace("flatten(1)", "flatten(1).clamp(0, 0.5)")},  # forward, the same state_dict
        {"mine": MINE.replace("return Net(", "spec.shape\n    return Net(")},
        {"mine": MINE.replace("flatten(1)", "flatten(1).clamp(-1e6, 1e6)")},  # code, the same behaviour
        {"mine_parts": PARTS.replace("relu()", "sigmoid()")},
        {"mine_parts": PARTS.replace("16", "17")},
        {"mine_deeper": DEEPER.replace("1.0", "1.0 + 0.0")},  # reached through another module
    ],
    ids=["forward", "builder", "code only", "activation", "constant", "helper of a helper"],
)
def test_an_edit_of_the_users_code_runs_again(cells_run: Callable[..., int], edit: dict[str, str]) -> None:
    assert cells_run() == CELLS
    write(**edit)
    assert cells_run() == CELLS
    assert cells_run() == 0


@pytest.mark.parametrize(
    ("module", "cells"),
    [
        ("seepage.attacks.reading.analytic_extraction", 1),
        ("seepage.attacks.reading.rows", 1),  # a part that it imports
        ("seepage.attacks.inversion.gradient_inversion", 0),  # another attack
        ("seepage.defenses.clipping", 2),
        ("seepage.metrics.image", 2),
        ("seepage.metrics.matching", 2),
        ("seepage.protocol.local", 2),
        ("seepage.report.html", 0),
    ],
)
def test_an_edit_of_seepage_runs_again_what_it_takes_part_in(
    cells_run: Callable[..., int], monkeypatch: pytest.MonkeyPatch, module: str, cells: int
) -> None:
    assert cells_run() == CELLS
    monkeypatch.setattr("seepage.engine.identity.code.parse", one_line_more(module))
    assert cells_run() == cells
    assert cells_run() == 0


@pytest.mark.parametrize("package", ["seepage", "torch", "numpy", "scipy", "torchmetrics"])
def test_another_version_runs_again_and_says_why(
    cells_run: Callable[..., int], monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    assert cells_run() == CELLS
    installed, notes = metadata.version, list[str]()
    monkeypatch.setattr(
        "seepage.engine.identity.packages.metadata.version",
        lambda name: "99" if name == package else installed(name),
    )
    assert cells_run(on_note=notes.append) == CELLS
    assert notes == [
        f"2 finished cells are run again, for these changed since: {package} ({installed(package)} -> 99)."
    ]
    (folder,) = Path("seepage-runs").iterdir()  # in the same place
    assert AuditLog.read(folder).header.packages[package] == "99"
    assert cells_run(on_note=notes.append) == 0 and len(notes) == 1


@pytest.mark.parametrize("change", [{"exact_tolerance": 2e-3}, {"public_examples": 99}, {"delta": 1e-6}])
def test_another_spec_is_another_audit(cells_run: Callable[..., int], change: dict[str, Any]) -> None:
    assert cells_run() == CELLS
    assert cells_run(change) == CELLS
    first = min(Path("seepage-runs").iterdir(), key=lambda folder: folder.stat().st_mtime)
    with pytest.raises(LogError, match=r"different audit .* --out, or replace it with --fresh"):
        cells_run(change, out=first)
    assert cells_run(change, out=first, fresh=True) == CELLS


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


def frozen(net: nn.Sequential) -> nn.Module:
    net[1].bias.requires_grad_(False)
    return net


def hooked(net: nn.Sequential) -> nn.Module:
    net[2].register_forward_hook(lambda module, inputs, output: 2 * output)
    return net


def shared(net: nn.Sequential) -> nn.Module:
    net[3].bias = nn.Parameter(net[3].bias.detach().clone())
    net[1].weight = nn.Parameter(net[1].weight.detach().clone())
    return net


@pytest.mark.parametrize(
    "change",
    [
        lambda net: nn.Sequential(net[0], net[1], nn.Sigmoid(), net[3]),
        frozen,
        lambda net: net.double(),
        lambda net: net.eval(),
        hooked,
        lambda net: nn.Sequential(net[0], net[1], nn.LeakyReLU(0.1), net[3]),
    ],
    ids=["sigmoid", "frozen", "dtype", "mode", "hook", "leaky"],
)
def test_another_model_with_the_same_weights_is_another_audit(
    cells_run: Callable[..., int], change: Callable[[nn.Sequential], nn.Module]
) -> None:
    x = torch.rand(40, 64, generator=torch.Generator().manual_seed(1))
    data = (x, torch.arange(40) % 10)
    assert cells_run(model=network(), data=data) == CELLS
    assert cells_run(model=shared(network()), data=data) == 0  # a copy
    assert cells_run(model=change(network()), data=data) in (1, 2)
    (first, second) = Path("seepage-runs").iterdir()
    for folder in (first, second):
        assert AuditLog.read(folder).missing == 0


def test_other_data_or_another_normalisation_are_another_audit(cells_run: Callable[..., int]) -> None:
    x = torch.rand(40, 64, generator=torch.Generator().manual_seed(1))
    y = torch.arange(40) % 10
    changed = x.clone()
    changed[-1, -1] += 1e-3
    net = network()
    assert cells_run(model=net, data=(x, y)) == CELLS
    assert cells_run(model=net, data=(changed, y)) == CELLS
    assert cells_run(model=net, data=(x, y.flip(0))) == CELLS
    assert cells_run({"data": {"name": "digits", "value_range": [0, 2]}}, model=net, data=(x, y)) == CELLS
    assert cells_run(model=copy.deepcopy(net), data=(x.clone(), y.clone())) == 0


def test_a_model_with_a_random_forward_pass_resumes(cells_run: Callable[..., int]) -> None:
    noisy = MINE.replace("x.flatten(1)", "x.flatten(1) + 0.01 * torch.rand(64)")
    write(mine="import torch\n" + noisy)
    assert cells_run() == CELLS
    torch.rand(7)
    assert cells_run() == 0


def test_python_says_it_on_the_console(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {
        "model": network(),
        "data": "digits",
        "batch_size": 1,
        "seeds": [0],
        "out": "run",
    }
    given["attacks"] = ["analytic_extraction"]
    seepage.audit(**given)
    assert "run again" not in capsys.readouterr().err
    monkeypatch.setattr("seepage.engine.identity.code.parse", one_line_more("seepage.attacks.reading.rows"))
    seepage.audit(**given)
    said = "seepage: 1 finished cell is run again, for these changed since: the attack's code."
    assert said in capsys.readouterr().err.splitlines()


OUTSIDE = """
from seepage.attacks import Attack
from seepage.attacks.reading.analytic_extraction import analytic_extraction
import mine_deeper


class Mine(Attack):
    def reconstruct(self, exchanges, known):
        found = analytic_extraction().reconstruct(exchanges, known)
        return found.with_notes(str(mine_deeper.scale()))
"""


def test_an_attack_from_outside_is_read_without_being_loaded(cells_run: Callable[..., int]) -> None:
    Path("prior.npz").write_bytes(b"weights")
    Path("outside.py").write_text(OUTSIDE)
    outside = {"name": "outside:Mine", "may_read": ["prior.npz"]}
    change = {"attacks": [outside], "model": {"name": "mlp", "hidden": [16]}}
    assert cells_run(change) == CELLS
    assert cells_run(change) == 0
    assert "outside" not in sys.modules and "mine_deeper" not in sys.modules
    Path("prior.npz").write_bytes(b"other weights")
    assert cells_run(change) == 1
    write(mine_deeper=DEEPER.replace("1.0", "2.0"))
    assert cells_run(change) == 1
    assert cells_run(change) == 0
