"""What an attack will cost, found out by trying it: whole cells on small batches, searches for a few steps.

Nothing but seconds, and the reason where an attack cannot work, comes out of a rehearsal. It is played on a
batch of its own, under a seed that is none of the audit's.

Trials are timed by the processor time of this thread, which other programs do not disturb, and multiplied by
how much longer all trials together took by the clock on the wall.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from seepage.core.progress import Progress, listening
from seepage.engine.isolation.attack import is_outside
from seepage.engine.prepared import Prepared
from seepage.protocol.threat import sees_each_update
from seepage.record import AttackRef, Cell

RunCell = Callable[[Prepared, AttackRef, int], tuple[Cell, object]]
"""`run.run_cell`: one attack on one seed, from the clients' training to the scores."""

Clock = Callable[[], float]

_SMALLER = (16, 4, 1)
"""A rehearsal tries these fractions of the batch size, the smallest first, as long as it is quick."""
_CUBIC = 3.0
"""Nothing grows faster with the batch: the dearest step solves as many equations as there are examples."""
_STEPS = 5
"""Of a search, after its first: enough to time one."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What one cell (one attack on one seed) is expected to take."""

    seconds: float = 0.0
    """With all its steps, where it searches."""
    reason: str = ""
    """Why the attack cannot work here; empty where it can."""
    steps: int = 0
    """Of a search; 0 for attacks that do not search, or end by themselves sooner than can be timed."""
    each_step: float = 0.0

    def share_of_steps(self, seconds: float) -> float:
        """How much of the search fits into so many seconds, in [0, 1].

        >>> Forecast(seconds=11.0, steps=100, each_step=0.1).share_of_steps(6.0)
        0.5
        """
        if not self.steps:
            return 1.0 if seconds >= self.seconds else 0.0
        search = self.steps * self.each_step
        return min(1.0, max(0.0, (seconds - (self.seconds - search)) / search))


class _Enough(BaseException):
    """Ends a search that has been timed. No Exception: nobody in between shall take it for a failure."""


class _Stopwatch:
    """Listens to a search until its steps can be timed."""

    def __init__(self, limit: float, clock: Clock) -> None:
        self.limit, self.steps, self.each = limit, 0, 0.0
        self.before: float | None = None
        """Seconds to the first step: training, labels, the choice of the fastest way."""
        self._clock, self._started = clock, clock()
        self._first = self._last = (0, 0.0)
        """Step and time at which the search was first heard of, and last."""

    def __call__(self, progress: Progress) -> None:
        now = self._clock() - self._started
        if self.before is None:
            self.before, self.steps = now, progress.steps
            self._first = progress.step, now
        elif progress.step <= self._last[0]:  # the search of another update: the first ended by itself
            self.steps, self._first = self._last[0] + 1, (progress.step, now)
        self._last = progress.step, now
        done, spent = progress.step - self._first[0], now - self._first[1]
        if done > 0:
            self.each = spent / done
            if spent >= self.limit or (done >= _STEPS and spent >= self.limit / 2):
                raise _Enough


class Rehearsal:
    """Tries attacks of one audit. limit: seconds after which it reckons instead of trying larger batches."""

    def __init__(self, prepared: Prepared, run_cell: RunCell, *, limit: float) -> None:
        self.prepared, self.limit = prepared, limit
        self._run_cell = run_cell
        # Recorded exchanges are what they are: one of the audit's own is tried, as a whole.
        self._seed = max(prepared.spec.seeds) + (prepared.recorded is None)
        self._by_wall = self._by_processor = 0.0

    @property
    def _load(self) -> float:
        """Seconds on the wall for one of this thread's: more than 1 where other programs run as well."""
        return max(1.0, self._by_wall / self._by_processor) if self._by_processor else 1.0

    def warm_up(self, ref: AttackRef) -> None:
        """The first run of anything is slower: libraries, memory, kernels."""
        self._timed(ref, 1)
        self._by_wall = self._by_processor = 0.0

    def whole(self, ref: AttackRef) -> Forecast:
        """An attack that does not search: on growing batches, as long as the next one is quick."""
        full = 1 if self.prepared.recorded is not None else self.prepared.spec.protocol.batch_size
        tried: list[tuple[int, float]] = []
        for size in sorted({max(1, full // part) for part in _SMALLER}):
            if tried and self._load * grown(tried, size) > self.limit:
                tried[-1] = self._again(ref, *tried[-1])
                if self._load * grown(tried, size) > self.limit:
                    return Forecast(seconds=self._load * grown(tried, full))
            seconds, cell = self._timed(ref, size)
            if cell.status == "not_applicable" and size == full:
                return Forecast(reason=cell.reason)
            if cell.status != "not_applicable":
                tried.append((size, seconds))
        if len(tried) == 1 and tried[0][1] <= self.limit:
            tried[0] = self._again(ref, *tried[0])
        return Forecast(seconds=self._load * tried[-1][1])

    def _again(self, ref: AttackRef, size: int, seconds: float) -> tuple[int, float]:
        """A trial that is repeated: the first time, with all that it imports, may be slow by itself."""
        return size, min(seconds, self._timed(ref, size)[0])

    def search(self, ref: AttackRef, *, around: float) -> Forecast:
        """An attack that searches: a few steps on a batch of the audit's size. around: what scoring takes."""
        watch = _Stopwatch(self.limit / self._load, self._clock(ref))
        try:
            with listening(watch):
                seconds, cell = self._timed(ref, self.prepared.spec.protocol.batch_size)
        except _Enough:
            assert watch.before is not None
            updates, load = updates_of(self.prepared), self._load
            one = watch.before + watch.steps * watch.each
            return Forecast(
                seconds=around + updates * load * one,
                steps=updates * watch.steps,
                each_step=load * watch.each,
            )
        reason = cell.reason if cell.status == "not_applicable" else ""
        return Forecast(seconds=self._load * seconds, reason=reason)

    def _timed(self, ref: AttackRef, batch_size: int) -> tuple[float, Cell]:
        """Seconds of this thread, and what came out."""
        spec = self.prepared.spec
        protocol = spec.protocol.model_copy(update={"batch_size": batch_size})
        smaller = replace(
            self.prepared.with_attacks([ref]), spec=spec.model_copy(update={"protocol": protocol})
        )
        clock = self._clock(ref)
        before, on_the_wall = clock(), time.perf_counter()
        try:
            cell, _ = self._run_cell(smaller, ref, self._seed)
        except Exception as error:  # the audit itself will meet it, and record it with its traceback
            cell = Cell(attack=ref, seed=self._seed, status="failed", reason=str(error))
        finally:
            seconds = clock() - before
            self._by_processor += seconds
            self._by_wall += time.perf_counter() - on_the_wall
        return seconds, cell

    def _clock(self, ref: AttackRef) -> Clock:
        """This thread's own, unless the work is done on a GPU or in another process."""
        elsewhere = self.prepared.device.type != "cpu" or is_outside(ref.name, ref.params)
        return time.perf_counter if elsewhere else time.thread_time


def grown(tried: Sequence[tuple[int, float]], size: int) -> float:
    """Seconds for a batch of `size`, by the power law through the last two trials; never fewer than before.

    What is slow on the smallest batch already is slow because of the model, whose probes do not grow: one
    trial stands for all sizes.

    >>> grown([(1, 1.0), (2, 4.0)], 4), grown([(1, 3.0), (2, 3.0)], 4), grown([(1, 3.0)], 4)
    (16.0, 3.0, 3.0)
    """
    if len(tried) == 1:
        return tried[0][1]
    (before, less), (last, seconds) = tried[-2:]
    power = min(_CUBIC, max(0.0, math.log(seconds / less) / math.log(last / before)))
    return float(seconds * (size / last) ** power)


def updates_of(prepared: Prepared) -> int:
    """Updates that a passive server has of one cell: each is searched by itself."""
    protocol = prepared.spec.protocol
    if sees_each_update(prepared.threat, protocol.aggregation):
        return protocol.rounds * protocol.played
    groups = protocol.clients // protocol.minimum_honest if protocol.fakes else 1
    return protocol.rounds * max(1, groups)
