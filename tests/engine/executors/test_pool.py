"""Real processes of this machine: the same bytes, deaths in the middle, Ctrl-C, a parent that is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor
from pathlib import Path

import pytest
import torch

from seepage.core.errors import SeepageError
from seepage.engine.executors import Died, Work, finished, open_executor
from seepage.engine.executors import pool as pool_module
from seepage.engine.executors.pool import Pool

from .cells import CELLS, audit, begun, builds, deadly, died, outside


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(2) as pool:
        yield pool


def test_cells_are_byte_identical_to_those_of_this_process(pool: Pool) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        here = dict(finished(None, audit(), CELLS))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert dict(finished(pool, audit(), CELLS)) == here


def test_an_attack_from_outside_is_locked_in_there_too(pool: Pool, tmp_path: Path) -> None:
    here = dict(finished(None, outside(tmp_path), [(1, 0)]))
    assert b"Ran in a process that never held the data" in here[1, 0]["cell"]
    assert dict(finished(pool, outside(tmp_path), [(1, 0)])) == here


def test_a_context_is_built_once_for_each_worker(pool: Pool, tmp_path: Path) -> None:
    results = dict(finished(pool, builds(tmp_path), range(20)))
    assert {job: square for job, (square, _) in results.items()} == {job: job * job for job in range(20)}
    processes = {process for _, process in results.values()}
    assert 1 <= len(processes) <= 2 and os.getpid() not in processes
    assert len(list(tmp_path.glob("context-*"))) <= 2


def test_a_worker_killed_in_the_middle_loses_nothing(pool: Pool, tmp_path: Path) -> None:
    results = dict(finished(pool, deadly(tmp_path, deaths=1, deadly_job=3, hold=0.2), range(8)))
    assert results == {job: job * job for job in range(8)}
    # The death of one worker is no reason to begin another's job again.
    assert [begun(tmp_path, job) for job in range(8)] == [1, 1, 1, 2, 1, 1, 1, 1]


def test_a_job_that_always_ends_its_worker_fails_and_the_others_go_on(pool: Pool, tmp_path: Path) -> None:
    results = dict(finished(pool, deadly(tmp_path, deaths=99), range(4)))
    assert died(results) == [0] and begun(tmp_path, 0) == 3
    assert isinstance(results[0], Died) and "more memory" in results[0].reason
    assert {job: results[job] for job in (1, 2, 3)} == {1: 1, 2: 4, 3: 9}


def test_what_a_job_raises_is_raised_here(pool: Pool) -> None:
    def run(_: None, job: int) -> int:
        raise SeepageError("one sentence.")

    with pytest.raises(SeepageError, match=r"^one sentence\.$"):
        list(finished(pool, Work(key="raises", build=lambda: None, run=run), [1]))
    assert pool.submit(pow, 2, 2).result() == 4


SCRIPT = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has what runs in the background ignore it
from pathlib import Path
import torch
from seepage.engine.executors import Work, finished, open_executor

class Net(torch.nn.Linear):  # defined in the script itself
    pass

def run(model, job):
    Path(f"worker-{os.getpid()}").touch()
    time.sleep(60 if job else 0)
    return model.weight.sum().item()

model = Net(2, 2)
with open_executor("pool", jobs=2) as executor:
    for job, result in finished(executor, Work(key="k", build=lambda: model, run=run), range(JOBS)):
        assert result == model.weight.sum().item()
        print(job, flush=True)
"""


def script(tmp_path: Path, jobs: int) -> subprocess.Popen[str]:
    (tmp_path / "script.py").write_text(SCRIPT.replace("JOBS", str(jobs)))
    path = [str(Path(entry).resolve()) for entry in sys.path if entry]
    return subprocess.Popen(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_a_script_needs_no_main_guard_and_may_define_the_model(tmp_path: Path) -> None:
    output, errors = script(tmp_path, jobs=1).communicate(timeout=120)
    assert (output, errors) == ("0\n", "")


def alive(tmp_path: Path) -> list[int]:
    found = []
    for file in tmp_path.glob("worker-*"):
        process = int(file.name.removeprefix("worker-"))
        status = Path(f"/proc/{process}/stat")
        if status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z":
            found.append(process)
    return found


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc to see whether a process is there")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_the_end_of_the_process_is_the_end_of_its_workers(tmp_path: Path, sent: signal.Signals) -> None:
    running = script(tmp_path, jobs=3)
    assert running.stdout is not None and running.stdout.readline() == "0\n"
    while len(list(tmp_path.glob("worker-*"))) < 2:
        time.sleep(0.1)
    before = time.monotonic()
    if sent == signal.SIGINT:
        os.killpg(running.pid, sent)  # as a terminal does: the workers hear it too
    else:
        running.kill()
    running.wait(timeout=30)
    assert time.monotonic() - before < 30  # and not the minute that its jobs take
    deadline = time.monotonic() + 20
    while alive(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert alive(tmp_path) == []


def test_a_worker_that_begins_while_the_pool_ends_takes_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C may come between the question whether the pool has ended and the worker that is made then."""
    pool = Pool(1)
    made = pool_module.ProcessPoolExecutor

    def ends_meanwhile(*args: object, **kwargs: object) -> object:
        pool.shutdown(wait=False, cancel_futures=True)
        return made(*args, **kwargs)

    monkeypatch.setattr(pool_module, "ProcessPoolExecutor", ends_meanwhile)
    with pytest.raises(BrokenExecutor, match="shut down"):
        pool.call(time.sleep, 60)
    assert not pool._all


def test_by_name_with_the_number_of_jobs() -> None:
    with open_executor("pool", jobs=3) as executor:
        assert isinstance(executor, Pool) and executor.workers == 3
    with open_executor("auto", jobs=1, expected=[3600.0] * 4) as executor:
        assert executor is None
