"""An audit that is killed inside a long inversion goes on inside it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from seepage.core.checkpoint import pack, unpack
from seepage.core.progress import Progress
from seepage.engine.partial import PartialStates
from seepage.engine.run import run_audit
from seepage.engine.spec import parse_spec
from seepage.record import AttackRef, AuditLog, RunFolder, cell_id

SPEC = {
    "model": {"name": "mlp", "hidden": [32]},
    "data": "digits",
    "attacks": [{"name": "tag", "steps": 24}],
    "seeds": [0],
    "protocol": {"batch_size": 2},
}
CELL = cell_id(AttackRef(name="tag", params={"steps": 24}), 0)

KILLED_AT_STEP_12 = f"""
import json, os, signal
import seepage.core.checkpoint as checkpoint
import seepage.engine.run as run
import seepage.engine.work as work
from seepage.engine.spec import parse_spec
work._KEEP_EVERY = 0.0
checkpoint._LARGEST_SHARE = float("inf")
def on_step(progress):
    if progress.step == 12:
        os.kill(os.getpid(), signal.SIGKILL)
run.run_audit(parse_spec(json.loads({json.dumps(json.dumps(SPEC))})), out="run", on_step=on_step)
"""


def result(log: AuditLog) -> tuple[object, object]:
    """Scores and tensors of the attack's cell."""
    cell = next(cell for cell in log.cells if cell.id == CELL)
    arrays = log.folder.read_arrays(CELL)
    return [e.scores for e in cell.examples], {name: array.tobytes() for name, array in arrays.items()}


def test_kill_9_inside_an_inversion_costs_less_than_the_inversion(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    script = [sys.executable, "-c", KILLED_AT_STEP_12]
    killed = subprocess.run(script, cwd=tmp_path, env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    kept = list((tmp_path / "run" / "cells").glob("*.partial*"))
    assert [file.name for file in kept] == [f"{CELL}.partial0.safetensors"]
    steps: list[int] = []
    resumed = run_audit(
        parse_spec(SPEC), out=tmp_path / "run", on_step=lambda progress: steps.append(progress.step)
    )
    assert steps[0] == 12 and steps[-1] == 23
    whole = run_audit(parse_spec(SPEC), out=tmp_path / "whole")
    assert result(resumed) == result(whole)
    cell = next(cell for cell in resumed.cells if cell.id == CELL)
    assert any(note.startswith("Resumed") for note in cell.notes)
    assert not list((tmp_path / "run" / "cells").glob("*.partial*"))


def test_seconds_of_the_interrupted_run_are_part_of_the_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seepage.engine.work._KEEP_EVERY", 0.0)
    spec = parse_spec(SPEC)

    def interrupt(progress: Progress) -> None:
        if progress.step == 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_audit(spec, out=tmp_path, on_step=interrupt)
    (file,) = (tmp_path / "cells").glob("*.partial*")
    file.write_bytes(pack({**unpack(file.read_bytes()), "seconds": 5000.0}))
    log = run_audit(spec, out=tmp_path)
    cell = next(cell for cell in log.cells if cell.id == CELL)
    assert cell.cost is not None and 5000 < cell.cost.seconds < 5100


def test_one_cell_never_touches_anothers_states(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    one, other = PartialStates(folder, "tag-seed1"), PartialStates(folder, "tag-seed11")
    one.remove()  # nothing there yet, not even the folder
    one.write("0", b"one")
    other.write("0", b"other")
    assert one.read("0") == b"one" and one.read("1") is None
    one.remove()
    assert one.read("0") is None and other.read("0") == b"other"
