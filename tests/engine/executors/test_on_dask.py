"""A real Dask cluster of two worker processes on this machine."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import pytest

from seepage.core.errors import SeepageError
from seepage.engine.executors import Died, finished, open_executor
from seepage.engine.executors.on_dask import DaskExecutor

from .cells import CELLS, audit, begun, builds, deadly, died, meeting, outside

dask = pytest.importorskip("dask", reason="the extra 'dask' is not installed")
distributed = pytest.importorskip("distributed", reason="the extra 'dask' is not installed")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=logging.CRITICAL
        ) as cluster,
    ):
        yield cluster


@pytest.fixture(scope="module")
def executor(cluster: Any) -> Iterator[DaskExecutor]:
    with open_executor("dask", scheduler=cluster.scheduler_address) as executor:
        assert isinstance(executor, DaskExecutor)
        yield executor


def test_both_workers_work_at_the_same_time(executor: DaskExecutor, tmp_path: Path) -> None:
    assert executor.workers == 2
    results = dict(finished(executor, meeting(tmp_path), [0, 1]))
    assert len({*results.values(), os.getpid()}) == 3


def test_cells_are_byte_identical_to_those_of_this_process(executor: DaskExecutor) -> None:
    assert dict(finished(executor, audit(), CELLS)) == dict(finished(None, audit(), CELLS))


def test_an_attack_from_outside_is_locked_in_there_too(executor: DaskExecutor, tmp_path: Path) -> None:
    here = dict(finished(None, outside(tmp_path), [(1, 0)]))
    assert b"Ran in a process that never held the data" in here[1, 0]["cell"]
    assert dict(finished(executor, outside(tmp_path), [(1, 0)])) == here


def test_a_context_is_built_once_for_each_worker(executor: DaskExecutor, tmp_path: Path) -> None:
    results = dict(finished(executor, builds(tmp_path), range(20)))
    assert {job: square for job, (square, _) in results.items()} == {job: job * job for job in range(20)}
    processes = {process for _, process in results.values()}
    assert os.getpid() not in processes and len(list(tmp_path.glob("context-*"))) == len(processes)


@pytest.mark.parametrize("parent", [False, True], ids=["the job's process", "Dask's worker"])
def test_a_worker_killed_in_the_middle_loses_nothing(
    executor: DaskExecutor, tmp_path: Path, parent: bool
) -> None:
    results = dict(finished(executor, deadly(tmp_path, deaths=1, deadly_job=3, parent=parent), range(6)))
    assert results == {job: job * job for job in range(6)} and begun(tmp_path, 3) == 2


@pytest.mark.parametrize(("parent", "tries"), [(False, 3), (True, 2)], ids=["our count", "Dask's own count"])
def test_a_job_that_always_ends_its_worker_fails_and_the_others_go_on(
    executor: DaskExecutor, tmp_path: Path, parent: bool, tries: int
) -> None:
    results = dict(finished(executor, deadly(tmp_path, deaths=99, parent=parent), range(3)))
    assert died(results) == [0] and isinstance(results[0], Died) and begun(tmp_path, 0) == tries
    assert {job: results[job] for job in (1, 2)} == {1: 1, 2: 4}


def test_an_executor_of_the_users_own_is_taken_and_stays_open(cluster: Any, tmp_path: Path) -> None:
    with distributed.Client(cluster, set_as_default=False) as client:
        mine = client.get_executor(pure=False)
        with open_executor(mine) as executor:
            assert executor is mine and isinstance(executor, Executor)
            assert [job for job, _ in finished(executor, builds(tmp_path), [1, 2, 3])] != []
        assert mine.submit(pow, 2, 3).result() == 8


def test_a_scheduler_that_does_not_answer() -> None:
    before = time.monotonic()
    with (
        pytest.raises(
            SeepageError, match=r"^no Dask scheduler answers at tcp://127\.0\.0\.1:9 \(.*start one"
        ),
        open_executor("dask", scheduler="tcp://127.0.0.1:9"),
    ):
        pass
    assert time.monotonic() - before < 20
