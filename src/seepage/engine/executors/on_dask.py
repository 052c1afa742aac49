"""The cores of a Dask cluster, each job in a process that one of its workers starts for this run."""

from __future__ import annotations

import logging
import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any
from uuid import uuid4

from seepage.core.errors import SeepageError
from seepage.core.user_code import reason
from seepage.engine.executors.pool import Pool

_PATIENCE = 5.0
"""Seconds for a scheduler to answer. Dask by itself would try for half a minute."""
_IDLE = 300.0
"""Seconds after which a process without work ends, for a run that was killed cannot end it."""


class DaskExecutor(Executor):
    """Dask's own executor, whose workers pass each job on to a process of their own (see `apart`)."""

    def __init__(self, jobs: int | None = None, scheduler: str | None = None) -> None:
        import dask
        import distributed

        self._jobs = jobs
        self._run = uuid4().hex
        self._cluster: Any = None
        self._address = scheduler or dask.config.get("scheduler-address", None)
        if self._address is None:
            self._cluster = distributed.LocalCluster(
                n_workers=1, threads_per_worker=jobs, dashboard_address=None, silence_logs=logging.CRITICAL
            )
        try:
            self._client = distributed.Client(
                self._address or self._cluster, timeout=_PATIENCE, set_as_default=False
            )
        except (OSError, ValueError, TypeError) as error:
            raise SeepageError(
                f"no Dask scheduler answers at {self._address} ({reason(error)}): start one with `dask "
                "scheduler` and its workers with `dask worker`, and give its address as tcp://host:8786."
            ) from None
        # Not pure: Dask would give the same job its earlier answer.
        self._executor = self._client.get_executor(pure=False)

    @property
    def workers(self) -> int:
        """As many as asked for; else the threads that the scheduler's workers have now."""
        return self._jobs or max(1, sum(self._client.nthreads().values()))

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._client.status != "running":
            raise SeepageError(
                f"the Dask scheduler at {self._address} is gone: run the same command again when it is back; "
                "what is finished is kept."
            )
        future: Future[Any] = self._executor.submit(apart, self._run, fn, *args, **kwargs)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """With `cancel_futures`, what is running is ended too, at once."""
        self._executor.shutdown(wait=wait and not cancel_futures)
        if self._client.status == "running":
            self._client.run(end, self._run)
        self._client.close()
        if self._cluster is not None:
            self._cluster.close()

    def __exit__(self, kind: object, *rest: object) -> None:
        self.shutdown(cancel_futures=kind is not None)


_pools: dict[str, Pool] = {}
"""In a Dask worker: the processes of each run."""
_opening = threading.Lock()


def apart(run: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """In a Dask worker: the call in a process that this run alone uses.

    A worker lives longer than a run, so it may hold an older version of the user's modules; and its threads
    share one generator of random numbers, where each cell needs its own.
    """
    with _opening:
        if run not in _pools:
            multiprocessing.current_process().daemon = False  # else a nanny's worker may start no process
            _pools[run] = Pool(1, idle=_IDLE)
    return _pools[run].call(fn, *args, **kwargs)


def end(run: str) -> None:
    """In a Dask worker: end the processes of one run."""
    pool = _pools.pop(run, None)
    if pool is not None:
        pool.shutdown(cancel_futures=True)
