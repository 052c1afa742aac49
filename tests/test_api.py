"""The package in Python: public names, audits and studies of objects on any engine, logs of any kind."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import seepage
from seepage.core.errors import SpecError
from seepage.record import Cell

SMALL: dict[str, Any] = {"attacks": ["analytic_extraction"], "batch_size": 2, "seeds": 2}
TRAINING = {"rounds": 1, "clients": 1, "examples": 2, "test_examples": 8}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 20), nn.ReLU(), nn.Linear(20, 3))


def pairs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(40, 1, 4, 4, generator=torch.Generator().manual_seed(1)), torch.arange(40) % 3


def content(cells: tuple[Cell, ...]) -> list[dict[str, Any]]:
    return [cell.model_dump(exclude={"cost"}) for cell in cells]


def test_every_public_name_is_there_and_none_needs_torch_before_it_is_used() -> None:
    assert set(seepage.__all__) == {*seepage._PLACES, "__version__"}
    assert all(getattr(seepage, name) is not None for name in seepage.__all__)
    code = "import sys, seepage; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    with pytest.raises(AttributeError, match="no attribute 'adit'"):
        seepage.adit  # noqa: B018


def test_an_audit_of_objects_is_the_same_on_an_executor_of_ones_own(tmp_path: Path) -> None:
    here = seepage.audit(model=net(), data=pairs(), out=tmp_path / "here", engine="here", **SMALL)
    with ThreadPoolExecutor(2) as threads:
        sent = seepage.audit(model=net(), data=pairs(), out=tmp_path / "sent", engine=threads, **SMALL)
        assert threads.submit(pow, 2, 3).result() == 8  # it stays open
    assert content(here.cells) == content(sent.cells) and here.missing == 0


def test_a_study_in_python_and_what_open_log_makes_of_each_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = seepage.study(
        model=net(), data=pairs(), defenses=["sign"], training=TRAINING, out=tmp_path / "s", **SMALL
    )
    assert [row.point.title for row in found.rows] == ["none", "sign"] and found.missing == 0
    found.summary()
    assert "sign" in capsys.readouterr().out
    page = found.to_html(tmp_path / "page.html")
    assert "sign" in page.read_text() and found.to_json()["missing_cells"] == 0
    again = seepage.open_log(tmp_path / "s")
    assert isinstance(again, seepage.StudyResult) and again.to_json() == found.to_json()
    log = seepage.audit(model=net(), data=pairs(), out=tmp_path / "a", **SMALL)
    opened = seepage.open_log(tmp_path / "a")
    assert isinstance(opened, seepage.AuditResult) and opened.to_json() == log.to_json()
    assert seepage.rule(log, {"exact": 0.0001}).above and seepage.rule(log, {}).passed


def test_a_budget_in_python_ends_a_study_that_the_same_call_goes_on_with(tmp_path: Path) -> None:
    asked: dict[str, Any] = {
        "model": net(),
        "data": pairs(),
        "defenses": ["sign"],
        "training": TRAINING,
        "out": tmp_path / "s",
        **SMALL,
    }
    assert seepage.study(budget=1e-6, **asked).missing == 14
    assert seepage.study(**asked).missing == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"engine": "pol"}, "did you mean 'pool'"),
        ({"engine": 3}, "must be a name or a concurrent.futures.Executor, not int"),
        ({"jobs": 0}, "jobs must be at least 1"),
        ({"seeds": 0}, "names no seeds"),
        ({"batchsize": 2}, "did you mean 'batch_size'|unknown key 'batchsize'"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path: Path, arguments: dict[str, Any], said: str) -> None:
    for call in (seepage.audit, seepage.study):
        extra = {"defenses": ["sign"]} if call is seepage.study else {}
        with pytest.raises(SpecError, match=said):
            call(model=net(), data=pairs(), out=tmp_path / "run", **{**SMALL, **extra, **arguments})
    assert not (tmp_path / "run").exists()
