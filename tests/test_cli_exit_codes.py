"""Exit codes through the real command line: 1 means a leak (or a trap) and nothing else."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from seepage.attacks import ATTACKS, Attack
from seepage.cli import main
from seepage.endings import explained

USER = """
import torch, sys
from torch import nn

def dense():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 30), nn.ReLU(), nn.Linear(30, 3))
def bias_free():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3, bias=False))
def no_dense():
    return nn.Sequential(nn.Conv2d(1, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
def frozen():
    return dense().requires_grad_(False)
def dead():
    net = dense()
    with torch.no_grad():
        net[1].weight.zero_()
        net[1].bias.fill_(-1.0)
    return net
def convolutional():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
def leaves():
    sys.exit(1)
def load():
    g = torch.Generator().manual_seed(0)
    return torch.rand(40, 1, 4, 4, generator=g), torch.arange(40) % 3
def table():
    g = torch.Generator().manual_seed(0)
    return torch.rand(40, 16, generator=g), torch.arange(40) % 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "their_code.py").write_text(USER)
    sys.modules.pop("their_code", None)
    return tmp_path


def spec(model: str = "dense", *, data: str = "load", protocol: str = "{batch_size = 1}", **keys: str) -> str:
    lines = {
        "model": f'"their_code:{model}"',
        "data": f'"their_code:{data}"',
        "attacks": '["analytic_extraction"]',
        "seeds": "[0]",
        "protocol": protocol,
        **keys,
    }
    Path("audit.toml").write_text("\n".join(f"{key} = {value}" for key, value in lines.items()))
    return "audit.toml"


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


def said(captured: Any) -> str:
    """The one sentence on stderr."""
    lines = [line for line in captured.err.splitlines() if line.startswith("seepage:")]
    assert len(lines) == 1, captured.err
    return str(lines[0])


GATES = [
    ("dense", "{exact = 0.5}", 1),
    ("dense", "{mse = 1e-30}", 0),
    ("dense", "{exact = 1.5}", 2),
    ("dense", "{exact = nan}", 2),
    ("dense", "{rmse = 0.5}", 2),  # of tables
    ("dense", "{cosine = 0.5}", 3),  # of features
    ("no_dense", "{exact = 0.5}", 3),
    ("no_dense", "{}", 3),
    ("frozen", "{exact = 0.5}", 3),
    ("frozen", "{}", 3),
    ("convolutional", "{exact = 0.5}", 3),  # its features come out exactly, which are no pictures
    ("convolutional", "{cosine = 0.5}", 1),
    ("convolutional", "{}", 0),
]


@pytest.mark.parametrize(("model", "thresholds", "code"), GATES)
def test_the_gate_passes_only_what_was_measured(
    folder: Path, capsys: pytest.CaptureFixture[str], model: str, thresholds: str, code: int
) -> None:
    assert run("audit", spec(model, fail_on=thresholds), "--out", "run") == code
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    assert ("not measured: " in captured.err) == (code == 3)
    assert ("fail_on" in captured.err) == (code in (1, 2))


def test_json_carries_the_ruling(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("audit", spec("no_dense", fail_on="{exact = 0.5}"), "--out", "run", "--json") == 3
    found = json.loads(capsys.readouterr().out)
    assert found["exit_code"] == 3 and found["exceeded"] == []
    assert "analytic_extraction" in found["not_measured"][0]


def test_an_attack_that_does_not_fit_beside_one_that_does(folder: Path) -> None:
    both = '["analytic_extraction", "april"]'
    assert run("audit", spec(attacks=both, fail_on="{mse = 1e-30}"), "--out", "run") == 3
    assert run("audit", spec(attacks=both, fail_on="{exact = 0.5}"), "--out", "run") == 1
    assert run("audit", spec(attacks=both), "--out", "run") == 0


@pytest.mark.parametrize(
    ("model", "thresholds", "code"),
    [("dense", "{exact = 0.5}", 1), ("dead", "{exact = 0.5}", 0), ("frozen", "{exact = 0.5}", 3)],
)
def test_attacks_that_the_audit_chooses_by_itself(
    folder: Path, monkeypatch: pytest.MonkeyPatch, model: str, thresholds: str, code: int
) -> None:
    for name in set(ATTACKS) - {
        "prior_only",
        "adaptive",
        "analytic_extraction",
        "april",
        "recursive_inversion",
    }:
        monkeypatch.delitem(ATTACKS, name)  # searches take their time
    file = spec(model, attacks='"auto"', budget='"1h"', fail_on=thresholds)
    assert run("audit", file, "--out", "run") == code


class _Broken(Attack):
    """An attack of the package with a fault (those from outside run in a process of their own)."""

    __module__ = "seepage.attacks.broken"
    error: BaseException = KeyError("weight")

    def reconstruct(self, exchanges: Any, known: Any) -> Any:
        raise type(self).error


def test_a_fault_in_one_attack_fails_its_cell_and_is_tried_again(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ATTACKS, "broken", _Broken)
    both = '["broken", "analytic_extraction"]'
    assert run("audit", spec(attacks=both, fail_on="{mse = 1e-30}"), "--out", "run") == 3
    assert "KeyError: 'weight'" in capsys.readouterr().err
    cells = folder / "run" / "cells"
    assert json.loads((cells / "analytic_extraction-seed0.json").read_text())["status"] == "done"
    cell = json.loads((cells / "broken-seed0.json").read_text())
    assert cell["status"] == "failed"
    assert "The traceback is in cells/broken-seed0.traceback.txt." in cell["reason"]
    assert "Traceback" in (cells / "broken-seed0.traceback.txt").read_text()
    assert run("audit", spec(attacks=both), "--out", "run") == 0  # something was measured
    capsys.readouterr()
    monkeypatch.setattr(_Broken, "reconstruct", lambda self, e, k: ATTACKS["analytic_extraction"]().run(e, k))
    assert run("audit", spec(attacks=both, fail_on="{mse = 1e-30}"), "--out", "run") == 0
    assert json.loads((cells / "broken-seed0.json").read_text())["status"] == "done"
    assert not (cells / "broken-seed0.traceback.txt").exists()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8e12 bytes."),
    ],
)
def test_too_little_memory_fails_a_cell(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    monkeypatch.setitem(ATTACKS, "broken", _Broken)
    monkeypatch.setattr(_Broken, "error", error)
    assert run("audit", spec(attacks='["broken"]'), "--out", "run") == 3
    cell = json.loads((folder / "run/cells/broken-seed0.json").read_text())
    assert cell["status"] == "failed" and "not enough memory" in cell["reason"]


def test_an_interrupt_in_an_attack_still_stops(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ATTACKS, "broken", _Broken)
    monkeypatch.setattr(_Broken, "error", KeyboardInterrupt())
    assert run("audit", spec(attacks='["broken"]'), "--out", "run") == 130
    assert "What is finished is kept. To go on: seepage" in said(capsys.readouterr())
    assert not (folder / "run/cells/broken-seed0.json").exists()


def test_out_names_a_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("taken").write_text("")
    Path("study.toml").write_text(Path(spec()).read_text() + "\n[training]\nexamples = 4\n")
    for arguments in (
        ["audit", spec(), "--out", "taken"],
        ["tradeoff", "study.toml", "--out", "taken"],
        ["reproduce", "boenisch2021/table2", "--out", "taken"],
    ):
        assert run(*arguments) == 2, arguments
        assert "--out names a file" in said(capsys.readouterr())
    assert run("audit", spec(), "--out", "taken/run") == 2
    assert "taken" in said(capsys.readouterr())
    assert run("report", "taken") == 2
    assert run("init", "taken/audit.toml") == 2


def test_a_report_that_cannot_be_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("audit", spec(), "--out", "run") == 0
    capsys.readouterr()
    (folder / "a_folder").mkdir()
    assert run("report", "run", "--out", "a_folder") == 2
    assert "cannot be read or written" in said(capsys.readouterr())


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_a_disk_that_is_full_or_read_only(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number), "run/log.json")

    monkeypatch.setattr("os.fsync", refuse)
    assert run("audit", spec(), "--out", "run") == 2
    assert os.strerror(number) in said(capsys.readouterr())


def test_a_full_disk_in_the_middle_of_the_run(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing about a cell can be written any more, so that the run stops instead of failing every cell."""
    monkeypatch.setitem(ATTACKS, "broken", _Broken)

    def fill(self: Any, exchanges: Any, known: Any) -> Any:
        def refuse(*_: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("os.fsync", refuse)
        raise KeyError("weight")

    monkeypatch.setattr(_Broken, "reconstruct", fill)
    assert run("audit", spec(attacks='["broken"]'), "--out", "run") == 2
    assert "No space left on device" in said(capsys.readouterr())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_output_that_nobody_can_write_or_read(folder: Path) -> None:
    """Also a pipe that is closed early: neither is a leak."""
    command = [sys.executable, "-m", "seepage", "list", "--json"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("seepage:") and len(done.stderr.splitlines()) == 1, done.stderr
    closed = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert closed.stdout is not None and closed.stderr is not None
    closed.stdout.close()
    assert closed.wait() == 2
    assert "Traceback" not in closed.stderr.read()
    closed.stderr.close()


def test_a_fault_of_ours_is_one_sentence_and_a_file(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr("seepage.report.write_html", fault)
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    assert run("audit", spec(), "--out", "run", "--no-advice") == 2
    captured = capsys.readouterr()
    (file,) = folder.glob("seepage-error-*.txt")
    assert f"ZeroDivisionError: by zero. The traceback is in '{file}'" in said(captured)
    assert "Traceback" not in captured.err
    assert "in fault" in file.read_text()


def test_a_traceback_without_a_place_for_it_goes_to_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    try:
        raise ZeroDivisionError
    except ZeroDivisionError as error:
        assert "Traceback (most recent call last)" in explained(error)


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory.")])
def test_too_little_memory_before_any_attack(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fault(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("seepage.engine.points.prepare", fault)
    assert run("audit", spec()) == 2
    assert "not enough memory" in said(capsys.readouterr())


def test_a_users_code_that_exits_is_no_leak(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("audit", spec("leaves")) == 2
    assert "exit" in said(capsys.readouterr())


def test_a_wrong_option_is_no_leak() -> None:
    assert run("audit", "--nonsense") == 2
    assert run("nonsense") == 2
    assert run("guard") == 2


def test_help_names_the_codes(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["audit", "--help"], ["tradeoff", "--help"], ["reproduce", "--help"]):
        assert run(*arguments) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "measured" in shown and "3" in shown, arguments
    assert run("guard", "--help") == 0
    assert "could not be checked" in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_a_study_of_attacks_that_cannot_work(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = Path(spec("no_dense")).read_text() + '\ndefenses = ["clipping"]\n'
    small = "[training]\nrounds = 1\nclients = 1\nexamples = 4\ntest_examples = 8\n"
    Path("study.toml").write_text(text + small)
    assert run("tradeoff", "study.toml", "--out", "study", "--jobs", "1") == 3
    captured = capsys.readouterr()
    assert "not measured: " in captured.err
    assert "got nothing" not in captured.out


TABLE = """
title = "A table"
about = "recall"
needs = "nothing"
columns = [{name = "R", meaning = "recall", score = "extraction_recall"}]
published = ["R"]
model = "mlp"
data = "digits"
attacks = ["ATTACK"]
groups = [{title = "digits", rows = [{label = "r", paper = [0.5]}]}]
"""


def test_a_table_measured_and_not(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("table.toml").write_text(TABLE.replace("ATTACK", "analytic_extraction"))
    assert run("reproduce", "table.toml", "--seeds", "1", "--jobs", "1", "--out", "run") == 0
    shown = capsys.readouterr().out
    assert "A table" in shown and "0.500" in shown and "Report: " in shown
    assert run("report", "run") == 0
    assert capsys.readouterr().out.splitlines()[0] == "A table"
    assert run("report", "run", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["figures"]["R"]["paper"] == 0.5
    Path("table.toml").write_text(TABLE.replace("ATTACK", "april"))  # which a dense network cannot serve
    assert run("reproduce", "table.toml", "--seeds", "1", "--jobs", "1", "--out", "none") == 3
    assert "not measured: " in capsys.readouterr().err
    Path("table.toml").write_text("title = 3")
    assert run("reproduce", "table.toml") == 2
    assert "is wrong: input should be a valid string" in said(capsys.readouterr())
    earlier = Path("earlier")
    earlier.mkdir()
    (earlier / "row.json").write_text('{"checksum": "", "key": {}, "values": {}}')
    assert run("report", "earlier") == 2
    assert "the rows of a paper's table in the format of an earlier seepage" in said(capsys.readouterr())


def test_a_report_of_an_empty_log_is_a_page_that_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("audit", spec(), "--out", "run") == 0
    for file in (folder / "run" / "cells").iterdir():
        file.unlink()
    capsys.readouterr()
    assert run("report", "run") == 0
    assert "Not measured" in capsys.readouterr().out


def test_a_closed_pipe_is_not_taken_for_the_users_code() -> None:
    try:
        try:
            raise BrokenPipeError
        except BrokenPipeError:
            raise SystemExit(1)  # noqa: B904 - as rich does it
    except SystemExit as end:
        assert explained(end) == "the output was closed before everything was written."
