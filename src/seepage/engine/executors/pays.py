"""How many processes are worth starting, from what the jobs are expected to take or what they have taken."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any

WORKER_START = 4.0
"""CPU seconds until a worker has imported torch and seepage; `benchmarks/engines.py` shows what is left."""


def makespan(expected: Sequence[float], workers: int) -> float:
    """Seconds until the last of the jobs is done, the longest begun first.

    >>> makespan([10, 10, 10, 2], 2)
    20.0
    """
    free_at = [0.0] * workers
    for seconds in sorted(expected, reverse=True):
        heapq.heapreplace(free_at, free_at[0] + seconds)
    return max(free_at)


def worthwhile(expected: Sequence[float], cores: int) -> int:
    """The number of workers that is done first; 1 (no worker at all) where starting them costs too much.

    >>> worthwhile([0.5] * 8, 2), worthwhile([10.0] * 16, 2), worthwhile([3600.0] * 3, 64)
    (1, 2, 3)
    """
    workers = min(cores, len(expected))
    if workers <= 1 or WORKER_START + makespan(expected, workers) >= sum(expected):
        return 1
    return workers


class WhenItPays(Executor):
    """A pool that is opened once this process has worked for as long as its start takes.

    Where nobody knows how long the jobs take, this costs at most twice the better of the two ways: short work
    is done before, and of long work only the first seconds are done alone.
    """

    def __init__(self, workers: int, open_pool: Callable[[], Executor]) -> None:
        self.workers = workers
        self._open_pool = open_pool
        self._pool: Executor | None = None

    def pays(self, spent: float, left: int) -> bool:
        """Whether the rest should be sent, after `spent` seconds in this process."""
        return self._pool is not None or (left > 1 and spent >= WORKER_START)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._pool is None:
            self._pool = self._open_pool()
        return self._pool.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait, cancel_futures=cancel_futures)

    def __exit__(self, kind: object, *rest: object) -> None:
        self.shutdown(cancel_futures=kind is not None)
