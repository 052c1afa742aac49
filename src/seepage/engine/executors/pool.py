"""A pool of processes on this machine, in which the death of one worker touches its own job alone."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from typing import Any

from loky.backend import get_context
from loky.process_executor import ProcessPoolExecutor

from seepage.core.errors import SeepageError
from seepage.engine.parent import end_with_parent

_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",
    "LOKY_MAX_MEMORY_LEAK_SIZE": "1e18",  # a context is no leak: loky would start anew after 0.3 GB
}


class Pool(Executor):
    """Each worker is a pool of one: a pool of several would end them all with the first that dies.

    loky starts workers without importing the user's script again, so a script needs no
    `if __name__ == "__main__":`, and a notebook can have workers too.

    >>> with Pool(1) as pool:
    ...     pool.submit(pow, 2, 3).result()
    8
    """

    def __init__(self, workers: int, *, idle: float | None = None) -> None:
        """idle: seconds after which a worker without work ends; the next job starts it anew."""
        self.workers = workers
        self._idle_seconds = idle
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="seepage-pool")
        self._all: set[ProcessPoolExecutor] = set()
        self._idle: deque[ProcessPoolExecutor] = deque()
        self._ended = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """The call's future; BrokenExecutor in it means that this call's worker died."""
        return self._threads.submit(self.call, fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """With `cancel_futures`, what is running is ended too, at once."""
        self._ended = self._ended or cancel_futures
        if cancel_futures:
            self._end(*self._all)
        self._threads.shutdown(wait=wait, cancel_futures=cancel_futures)
        self._end(*self._all)

    def __exit__(self, kind: object, *rest: object) -> None:
        self.shutdown(cancel_futures=kind is not None)

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """The call's result, waited for in this thread."""
        worker = self._idle.pop() if self._idle else self._started()
        try:
            result = worker.submit(fn, *args, **kwargs).result()
        except BrokenExecutor:
            self._end(worker)
            raise
        except BaseException:
            self._idle.append(worker)
            raise
        self._idle.append(worker)
        return result

    def _started(self) -> ProcessPoolExecutor:
        self._refuse_if_ended()
        worker = ProcessPoolExecutor(
            1,
            timeout=self._idle_seconds,
            context=get_context("loky"),
            initializer=_begin,
            initargs=(os.getpid(),),
            env=_ENVIRONMENT,
        )
        self._all.add(worker)
        self._refuse_if_ended(worker)  # ended meanwhile: whoever ended the others did not see this one
        try:
            worker.submit(os.getpid).result()
        except BrokenExecutor:
            self._end(worker)
            if self._ended:
                raise
            raise SeepageError(
                "a worker process ended before it had begun, most often for want of memory: run the same "
                "command again with fewer --jobs; what is finished is kept."
            ) from None
        return worker

    def _refuse_if_ended(self, *begun: ProcessPoolExecutor) -> None:
        if self._ended:
            self._end(*begun)
            raise BrokenExecutor("the pool is shut down")

    def _end(self, *workers: ProcessPoolExecutor) -> None:
        for worker in workers:
            worker.shutdown(kill_workers=True)
            self._all.discard(worker)


def _begin(parent: int) -> None:
    """A new worker: deaf to Ctrl-C, on which its parent ends it, and gone when its parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent)
