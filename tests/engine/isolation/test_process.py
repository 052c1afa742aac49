"""The process of an attack ends with its audit, even in the middle of a search."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ATTACK = """
import time
from seepage.attacks.reading.analytic_extraction import AnalyticExtraction

class Slow(AnalyticExtraction):
    def __init__(self):
        time.sleep(600)
"""
SCRIPT = """
from seepage.engine.isolation.attack import IsolatedAttack
from seepage.engine.isolation.process import AttackProcess

process = AttackProcess()
print(process._process.pid, flush=True)
IsolatedAttack("slow_attack:Slow", {}, process=process)
"""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc to see whether a process is there")
def test_an_audit_that_is_killed_leaves_no_attack_behind(tmp_path: Path) -> None:
    (tmp_path / "slow_attack.py").write_text(ATTACK)
    path = [str(Path(entry).resolve()) for entry in sys.path if entry]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    audit = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    )
    assert audit.stdout is not None
    attack = Path("/proc") / audit.stdout.readline().strip()
    time.sleep(1)
    assert attack.exists()
    audit.kill()
    audit.wait()
    deadline = time.monotonic() + 30
    while _runs(attack) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _runs(attack)


def _runs(process: Path) -> bool:
    """A zombie waits for its new parent to look at it, and runs no more."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
