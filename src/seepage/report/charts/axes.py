"""Axes: round numbers to mark, and where a value stands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """From values to places, both ends included.

    >>> Axis(low=0.0, high=10.0, start=20.0, end=120.0).place(5.0)
    70.0
    """

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def around(cls, values: Sequence[float], *, start: float, end: float) -> tuple[Axis, list[float]]:
        """An axis that begins and ends at round numbers, and those to mark on it."""
        ticks = nice_ticks(min(values), max(values))
        return cls(ticks[0], ticks[-1], start, end), ticks

    def place(self, value: float) -> float:
        return self.start + (self.end - self.start) * (value - self.low) / (self.high - self.low)


def nice_ticks(low: float, high: float, *, about: int = 5) -> list[float]:
    """Round numbers that enclose [low, high].

    >>> nice_ticks(7.3, 41.0)
    [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]
    """
    if high - low <= 1e-12 * max(1.0, abs(low), abs(high)):  # nothing that an axis could resolve
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(i * step, 12) for i in range(first, last + 1)]
