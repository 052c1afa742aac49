"""A real Ray cluster of two nodes on this machine."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seepage.core.errors import SeepageError, SpecError
from seepage.engine.executors import Died, finished, open_executor
from seepage.engine.executors.on_ray import RayExecutor

from .cells import CELLS, audit, begun, builds, deadly, died, meeting, outside

STORE = 80 * 2**20
"""Bytes of shared memory for each node: about the least that Ray takes."""

ray = pytest.importorskip("ray", reason="the extra 'ray' is not installed")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False},
    )
    try:
        cluster.add_node(num_cpus=1, object_store_memory=STORE)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        cluster.shutdown()


@pytest.fixture(scope="module")
def executor(cluster: Any) -> Iterator[RayExecutor]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", cluster.address)
        with open_executor("ray") as executor:
            assert isinstance(executor, RayExecutor)
            yield executor


def test_both_nodes_work_at_the_same_time(executor: RayExecutor, tmp_path: Path) -> None:
    assert executor.workers == 2 and len(ray.nodes()) == 2
    results = dict(finished(executor, meeting(tmp_path), [0, 1]))
    assert len({*results.values(), os.getpid()}) == 3


def test_cells_are_byte_identical_to_those_of_this_process(executor: RayExecutor) -> None:
    assert dict(finished(executor, audit(), CELLS)) == dict(finished(None, audit(), CELLS))


def test_an_attack_from_outside_is_locked_in_there_too(executor: RayExecutor, tmp_path: Path) -> None:
    here = dict(finished(None, outside(tmp_path), [(1, 0)]))
    assert b"Ran in a process that never held the data" in here[1, 0]["cell"]
    assert dict(finished(executor, outside(tmp_path), [(1, 0)])) == here


def test_a_context_is_built_once_for_each_worker(executor: RayExecutor, tmp_path: Path) -> None:
    results = dict(finished(executor, builds(tmp_path), range(20)))
    assert {job: square for job, (square, _) in results.items()} == {job: job * job for job in range(20)}
    processes = {process for _, process in results.values()}
    assert os.getpid() not in processes
    assert len(list(tmp_path.glob("context-*"))) == len(processes)


def test_a_worker_killed_in_the_middle_loses_nothing(executor: RayExecutor, tmp_path: Path) -> None:
    results = dict(finished(executor, deadly(tmp_path, deaths=1, deadly_job=3), range(6)))
    assert results == {job: job * job for job in range(6)}
    assert [begun(tmp_path, job) for job in range(6)] == [1, 1, 1, 2, 1, 1]


def test_a_job_that_always_ends_its_worker_fails_and_the_others_go_on(
    executor: RayExecutor, tmp_path: Path
) -> None:
    results = dict(finished(executor, deadly(tmp_path, deaths=99), range(3)))
    assert died(results) == [0] and begun(tmp_path, 0) == 3
    assert isinstance(results[0], Died) and {job: results[job] for job in (1, 2)} == {1: 1, 2: 4}


def test_an_address_where_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    with (
        pytest.raises(SeepageError, match=r"^no Ray cluster at RAY_ADDRESS=127\.0\.0\.1:9 \(.*\): start one"),
        open_executor("ray"),
    ):
        pass


def test_the_address_comes_from_the_environment() -> None:
    with (
        pytest.raises(SpecError, match="set RAY_ADDRESS=host:1"),
        open_executor("ray", scheduler="host:1"),
    ):
        pass


def test_a_node_that_goes_in_the_middle_loses_nothing(
    cluster: Any, executor: RayExecutor, tmp_path: Path
) -> None:
    """The last test: after it there is one node."""
    own = ray.get_runtime_context().get_node_id()  # a process has a node of its own, and ends with it
    far = next(node for node in cluster.list_all_nodes() if node.node_id != own)

    hold = 4.0

    def at_work() -> int:
        """Processes that are in the middle of a job. A node has one CPU, so two of them are on two nodes."""
        now = time.time()
        files = [file for file in tmp_path.glob("begun-*") if now - file.stat().st_mtime < hold / 2]
        return len({file.name.split("-")[2] for file in files})

    def remove() -> None:
        while at_work() < 2:
            time.sleep(0.05)
        cluster.remove_node(far, allow_graceful=False)

    removing = threading.Thread(target=remove)
    removing.start()
    results = dict(finished(executor, deadly(tmp_path, deaths=0, hold=hold), range(6)))
    removing.join()
    assert results == {job: job * job for job in range(6)}
    assert sum(begun(tmp_path, job) for job in range(6)) > 6  # what the node had was begun again
