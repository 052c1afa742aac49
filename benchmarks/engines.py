"""How much faster a pool, Ray and Dask finish 16 cells of 10 s than this process alone.

    python benchmarks/engines.py [--cells 16] [--seconds 10] [--engines pool ray dask] [--busy]

Cells wait unless --busy is given: then they compute for so many CPU seconds, which says something on idle
cores alone. Waiting cells take as long on a machine that others use too, and what is missing to a ratio of 2
is what starting workers, sending and taking cost. Two workers each; Ray and Dask are clusters of two nodes on
this machine, which are started before. The pool's start is part of its time.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any

from seepage.engine.executors import Work, finished, open_executor

WORKERS = 2


def cell(context: tuple[float, bool], job: int) -> int:
    """One that takes `seconds`, of CPU time if it is busy."""
    seconds, busy = context
    clock = time.process_time if busy else time.monotonic
    end = clock() + seconds
    while (left := end - clock()) > 0:
        if not busy:
            time.sleep(left)
    return job


@contextmanager
def opened(engine: str) -> Iterator[Executor | None]:
    if engine == "ray":
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        from ray.cluster_utils import Cluster

        node = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
        cluster: Any = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
        try:
            cluster.add_node(**node)
            cluster.wait_for_nodes()
            os.environ["RAY_ADDRESS"] = cluster.address
            with open_executor("ray") as executor:
                yield executor
        finally:
            cluster.shutdown()
    elif engine == "dask":
        from distributed import LocalCluster

        with (
            LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=None) as there,
            open_executor("dask", scheduler=there.scheduler_address) as executor,
        ):
            yield executor
    else:
        with open_executor(engine, jobs=WORKERS) as executor:
            yield executor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--engines", nargs="+", default=["pool", "ray", "dask"])
    parser.add_argument("--busy", action="store_true")
    asked = parser.parse_args()
    context, jobs = (asked.seconds, asked.busy), range(asked.cells)
    alone = asked.cells * asked.seconds  # by construction
    for engine in asked.engines:
        work: Work[Any, int, int] = Work(key=f"{engine}", build=lambda: context, run=cell)
        with opened(engine) as executor:
            began = time.perf_counter()
            assert sorted(job for job, _ in finished(executor, work, jobs)) == list(jobs)
            took = time.perf_counter() - began
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(
            f"{engine}: {asked.cells} cells of {asked.seconds:g} s in {took:.1f} s, {alone / took:.2f} times "
            f"as fast as one process; load {os.getloadavg()[0]:.1f}; CPU s of ended children "
            f"{spent.ru_utime + spent.ru_stime:.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
