"""How far an inversion has come, for whoever listens, and how many steps fit into a budget of seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Progress:
    """One step of a solver."""

    step: int
    steps: int
    objective: float
    """The best restart's, so far."""
    seconds_left: float
    inputs: Tensor
    """(R, n, *shape): the current candidates in model units, for a thumbnail; empty where there are none."""


Work = tuple[float, Callable[[], object]]
Listener = Callable[[Progress], None]
_LISTENER: ContextVar[Listener | None] = ContextVar("progress_listener", default=None)
_TIME_UP: ContextVar[Callable[[], None] | None] = ContextVar("time_up", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call `listener` at every step of every inversion inside the block.

    >>> with listening(lambda progress: print(progress.step)):
    ...     Clock(seconds=None).report(step=0, steps=3, objective=1.0, inputs=Tensor())
    0
    """
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def current_listener() -> Listener | None:
    """Who listens now."""
    return _LISTENER.get()


@contextmanager
def on_time_up(tell_of_it: Callable[[], None]) -> Iterator[None]:
    """Call `tell_of_it` whenever a clock inside the block ends a search or shortens it.

    >>> with on_time_up(lambda: print("cut")):
    ...     Clock(seconds=0.0).expired
    cut
    True
    """
    token = _TIME_UP.set(tell_of_it)
    try:
        yield
    finally:
        _TIME_UP.reset(token)


def _time_up() -> None:
    if (tell_of_it := _TIME_UP.get()) is not None:
        tell_of_it()


class Clock:
    """Seconds since the start, against a budget if there is one."""

    def __init__(self, *, seconds: float | None, parent: Clock | None = None) -> None:
        self.seconds = seconds
        self.started = time.monotonic()
        self._parent = parent
        self._before = self._after = 0

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.started

    @property
    def expired(self) -> bool:
        """Whether to end for want of time; to be asked where there is more to do, see `on_time_up`."""
        over = self.seconds is not None and self.elapsed >= self.seconds
        if over:
            _time_up()
        return over

    def share(self, parts: int) -> Clock:
        """A clock with an equal part of what is left, started now."""
        left = None if self.seconds is None else max(0.0, self.seconds - self.elapsed) / parts
        return Clock(seconds=left, parent=self)

    def part(self, *, before: int, after: int) -> Clock:
        """This clock for a part of a search, which has so many steps before and after it.

        >>> with listening(lambda progress: print(progress.step, progress.steps)):
        ...     second = Clock(seconds=None).part(before=10, after=5)
        ...     second.report(step=2, steps=3, objective=1.0, inputs=Tensor())
        12 18
        """
        clock = Clock(seconds=None if self.seconds is None else self.seconds - self.elapsed, parent=self)
        clock._before, clock._after = before, after
        return clock

    def advance(self, seconds: float) -> None:
        """Count what an interrupted run has spent, here and on the clock this one is a share of."""
        self.started -= seconds
        if self._parent is not None:
            self._parent.advance(seconds)

    def steps_that_fit(self, work: Sequence[Work], steps: int, *, trials: int = 3) -> int:
        """At most `steps`; fewer where the budget, measured by a few trials, does not allow so many.

        work: what makes up a mean step, each part with the share of the steps that consist of it.
        """
        if self.seconds is None:
            return steps
        each = sum(share * _seconds_for(part, trials) for share, part in work)
        left = self.seconds - self.elapsed
        fit = max(1, min(steps, int(left / max(each, 1e-9))))
        if fit < steps:
            _time_up()
        return fit

    def report(self, *, step: int, steps: int, objective: float, inputs: Tensor) -> None:
        """Tell the listener, if there is one."""
        left = self.elapsed / max(1, step) * (steps + self._after - step)
        step, steps = step + self._before, steps + self._before + self._after
        tell(Progress(step=step, steps=steps, objective=objective, seconds_left=left, inputs=inputs.detach()))


def tell(progress: Progress) -> None:
    """Pass a step on to the listener, if there is one."""
    listener = current_listener()
    if listener is not None:
        listener(progress)


def _seconds_for(work: Callable[[], object], trials: int) -> float:
    work()  # the first is slower: memory, threads, kernels
    before = time.monotonic()
    for _ in range(trials):
        work()
    return (time.monotonic() - before) / trials
