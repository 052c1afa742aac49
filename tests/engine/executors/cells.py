"""Work for the tests of executors: small cells of a real audit, and jobs that end their worker.

It travels by value, for a worker cannot import the tests."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import cloudpickle

from seepage.engine.cell import run_cell
from seepage.engine.executors import Died, Work
from seepage.engine.prepare import prepare
from seepage.engine.prepared import Prepared
from seepage.engine.spec import parse_spec

cloudpickle.register_pickle_by_value(sys.modules[__name__])

AUDIT: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": [32]},
    "data": "digits",
    "attacks": ["analytic_extraction", {"name": "inverting_gradients", "steps": 5, "restarts": 1}],
    "protocol": {"batch_size": 2},
    "seeds": [0, 1],
    "device": "cpu",
}
CELLS = [(number, seed) for number in range(3) for seed in (0, 1)]


OUTSIDE = """
from seepage.attacks.reading.analytic_extraction import AnalyticExtraction

class Mine(AnalyticExtraction):
    pass
"""


def audit(**changes: Any) -> Work[Prepared, tuple[int, int], dict[str, bytes]]:
    """Cells of a real audit, among them a search of some steps."""

    def build() -> Prepared:
        return prepare(parse_spec({**AUDIT, **changes}))

    def run(prepared: Prepared, job: tuple[int, int]) -> dict[str, bytes]:
        cell, scored = run_cell(prepared, prepared.refs[job[0]], job[1])
        assert cell.status == "done" and scored is not None and cell.cost is not None
        content = cell.model_dump_json(exclude={"cost"}).encode()
        return {
            "cell": content,
            "truth": scored.truth.numpy().tobytes(),
            "found": scored.matched.numpy().tobytes(),
        }

    return Work(key=f"audit {changes}", build=build, run=run)


def outside(folder: Path) -> Work[Prepared, tuple[int, int], dict[str, bytes]]:
    """An audit by an attack of the user's own, in a module beside it."""
    (folder / "mine_beside.py").write_text(OUTSIDE)
    return audit(attacks=["mine_beside:Mine"])


def builds(folder: Path) -> Work[Path, int, tuple[int, int]]:
    """Leaves one file for every context that was built, and answers with the worker's process."""

    def build() -> Path:
        (folder / f"context-{os.getpid()}-{time.monotonic_ns()}").touch()
        return folder

    return Work(key=f"builds {folder}", build=build, run=lambda folder, job: (job * job, os.getpid()))


def deadly(
    folder: Path, *, deaths: int, deadly_job: int = 0, hold: float = 0.0, parent: bool = False
) -> Work[None, int, int]:
    """A job whose process (or its parent) is killed (-9) the first `deaths` times; the others live."""

    def run(_: None, job: int) -> int:
        (folder / f"begun-{job}-{os.getpid()}-{time.monotonic_ns()}").touch()
        if job == deadly_job and len(list(folder.glob(f"begun-{job}-*"))) <= deaths:
            os.kill(os.getppid() if parent else os.getpid(), signal.SIGKILL)
            time.sleep(60)
        time.sleep(hold)
        return job * job

    return Work(key=f"deadly {folder}", build=lambda: None, run=run)


def meeting(folder: Path) -> Work[None, int, str]:
    """Two jobs that wait for each other, so that only two workers at a time can do them; their processes."""

    def run(_: None, job: int) -> str:
        (folder / f"here-{job}").touch()
        deadline = time.monotonic() + 60
        while len(list(folder.glob("here-*"))) < 2:
            assert time.monotonic() < deadline, "the other job was not begun"
            time.sleep(0.05)
        return f"{os.getpid()}"

    return Work(key=f"meeting {folder}", build=lambda: None, run=run)


def begun(folder: Path, job: int) -> int:
    return len(list(folder.glob(f"begun-{job}-*")))


def died(results: dict[int, Any]) -> list[int]:
    return sorted(job for job, result in results.items() if isinstance(result, Died))
