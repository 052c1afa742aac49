"""Sending jobs to an executor and taking their results as they come, whatever becomes of the workers."""

from __future__ import annotations

import math
import pickle
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from typing import Any, Generic

from seepage.core.errors import SeepageError
from seepage.core.user_code import reason
from seepage.engine.executors.pays import WhenItPays
from seepage.engine.executors.work import (
    Context,
    Died,
    Job,
    Outcome,
    Result,
    Work,
    do,
    one_thread,
    origin,
    packed,
)

ATTEMPTS = 3
"""How often a job may end its worker. The last time it runs alone, with all the memory for itself."""

_LOST = {
    ("ray", "WorkerCrashedError"),
    ("ray", "NodeDiedError"),
    ("ray", "OutOfMemoryError"),
    ("ray", "ObjectLostError"),
    ("ray", "LocalRayletDiedError"),
    ("distributed", "FutureCancelledError"),
}
"""What Ray and Dask raise where a worker is gone: package and class, for neither need be installed."""
_LOST_FOR_GOOD = {("distributed", "KilledWorker")}
"""Dask has run the job again by itself, on as many workers as its `allowed-failures` says."""

OnNote = Callable[[str], None]


def finished(
    executor: Executor | None,
    work: Work[Context, Job, Result],
    jobs: Sequence[Job],
    *,
    until: float = math.inf,
    on_note: OnNote | None = None,
) -> Iterator[tuple[Job, Result | Died]]:
    """Each job with its result, in the order in which they are done.

    A job whose worker dies is run again. One that dies `ATTEMPTS` times has a `Died` as its result, and the
    others go on. On Ctrl-C what is done by then still comes out before the KeyboardInterrupt.

    executor: None for this process.
    until: when to begin no further job, by `time.monotonic`.
    on_note: is told in one sentence where the work cannot travel, so that this process does it.

    >>> work = Work(key="tens", build=lambda: 10, run=lambda ten, job: ten * job)
    >>> list(finished(None, work, [1, 2]))
    [(1, 10), (2, 20)]
    """
    if executor is None:
        yield from _in_this_process(work, jobs, until)
        return
    if isinstance(executor, WhenItPays):
        spent, jobs = 0.0, deque(jobs)
        while jobs and not executor.pays(spent, len(jobs)):
            begun = time.monotonic()
            yield from _in_this_process(work, [jobs.popleft()], until)
            spent += time.monotonic() - begun
    if not jobs:
        return
    try:
        sent = packed(work)
    except (pickle.PicklingError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        if on_note is not None:
            on_note(
                f"what is audited cannot be sent to another process ({reason(error)}), so this one does all "
                "the work: give the model as a function that builds it, and the data as arrays."
            )
        yield from _in_this_process(work, jobs, until)
        return
    yield from _Sending(executor, work.key, sent, list(jobs), until).results()


def _in_this_process(
    work: Work[Context, Job, Result], jobs: Sequence[Job], until: float
) -> Iterator[tuple[Job, Result]]:
    context = work.build() if work.here is None else work.here
    for job in jobs:
        if time.monotonic() >= until:
            return
        yield job, _done(work, context, job)


def _done(work: Work[Context, Job, Result], context: Context, job: Job) -> Result:
    """A function of its own, so that nobody here holds a result while the next job runs."""
    with one_thread():
        return work.run(context, job)


class _Sending(Generic[Job]):
    """The jobs of one call on their way. As many are out as there are workers, so that a context is sent
    about once per worker: with the first jobs, and to a worker that answers that it has none."""

    def __init__(self, executor: Executor, key: str, work: bytes, jobs: Sequence[Job], until: float) -> None:
        self.executor, self.key, self.work, self.jobs, self.until = executor, key, work, jobs, until
        self.origin = origin()
        self.out: dict[Future[bytes], int] = {}
        self.waiting = deque(range(len(jobs)))
        self.last_chances: deque[int] = deque()
        self.deaths: Counter[int] = Counter()
        self.contexts_sent = 0
        self.lacking: set[int] = set()

    def results(self) -> Iterator[tuple[Job, Any]]:
        try:
            while self._send():
                try:
                    done = wait(self.out, return_when=FIRST_COMPLETED).done
                except KeyboardInterrupt:
                    yield from self._taken([future for future in self.out if future.done()])
                    raise
                yield from self._taken(done)
        finally:
            for future in self.out:
                future.cancel()

    def _send(self) -> bool:
        """Fill up what is out; False where nothing is left to wait for."""
        if time.monotonic() >= self.until:
            return bool(self.out)
        wide = width(self.executor)
        while self.waiting and (wide is None or len(self.out) < wide):
            self._send_one(self.waiting.popleft(), wide)
        if not self.out and self.last_chances:
            self._send_one(self.last_chances.popleft(), wide)
        return bool(self.out)

    def _send_one(self, number: int, wide: int | None) -> None:
        with_context = wide is None or self.contexts_sent < wide or number in self.lacking
        self.contexts_sent += with_context
        job = pickle.dumps(self.jobs[number])
        try:
            future = self.executor.submit(do, self.key, self.origin, self.work if with_context else None, job)
        except (BrokenExecutor, RuntimeError) as error:
            raise SeepageError(
                f"the executor takes no more work ({reason(error)}): run the same command again with another "
                "one; what is finished is kept."
            ) from None
        self.out[future] = number

    def _taken(self, done: Iterable[Future[bytes]]) -> Iterator[tuple[Job, Any]]:
        for future in done:
            number = self.out.pop(future)
            try:
                outcome: Outcome = pickle.loads(future.result())
            except (Exception, CancelledError) as error:
                if (died := self._died(number, error)) is not None:
                    yield self.jobs[number], died
                continue
            if outcome.kind == "raised":
                raise outcome.value
            if outcome.kind == "needs context":
                self.lacking.add(number)
                self.waiting.appendleft(number)
            else:
                yield self.jobs[number], outcome.value
            del outcome  # not held until the next one is there

    def _died(self, number: int, error: BaseException) -> Died | None:
        """The job goes back into the queue, or it is given up; what is no death is raised."""
        if isinstance(error, SeepageError):
            raise error
        if isinstance(error, ModuleNotFoundError):
            raise SeepageError(
                f"a worker cannot begin ({reason(error)}): install seepage, with the same extras, where the "
                "workers run."
            ) from None
        for_good = _is(error, _LOST_FOR_GOOD)
        if not (for_good or isinstance(error, BrokenExecutor | CancelledError) or _is(error, _LOST)):
            raise error
        self.deaths[number] += 1
        if for_good or self.deaths[number] >= ATTEMPTS:
            return Died(
                "the process that computed it died every time it was tried, most often for want of memory: "
                "lower protocol.batch_size or protocol.clients, or run it where there is more memory."
            )
        (self.last_chances if self.deaths[number] == ATTEMPTS - 1 else self.waiting).append(number)
        return None


def width(executor: Executor | None) -> int | None:
    """How many jobs it does at a time; None where it does not say."""
    found = getattr(executor, "workers", None) or getattr(executor, "_max_workers", None)
    return found if isinstance(found, int) else None


def _is(error: BaseException, kinds: set[tuple[str, str]]) -> bool:
    return any((kind.__module__.partition(".")[0], kind.__name__) in kinds for kind in type(error).__mro__)
