"""How far two figures lie apart, with the interval of that difference."""

from __future__ import annotations

import math
from typing import Literal

from seepage.record import Estimate
from seepage.record.refs import Record

Word = Literal["less", "more", "no difference shown", "not measured"]


class Difference(Record):
    """A later figure minus the first one."""

    value: float
    low: float
    high: float

    @property
    def word(self) -> Word:
        """Only what the interval shows.

        >>> Difference(value=-0.5, low=-0.7, high=-0.2).word, Difference(value=0.1, low=-0.1, high=0.3).word
        ('less', 'no difference shown')
        """
        if math.isnan(self.low) or math.isnan(self.high):
            return "not measured"
        return "less" if self.high < 0 else "more" if self.low > 0 else "no difference shown"


def difference(first: Estimate | None, later: Estimate | None) -> Difference | None:
    """`later` minus `first`, by the method of variance estimates recovery (Newcombe 1998, method 10; Zou and
    Donner 2008): each end is as far off as the two ends beside it together, as the sides of a right angle.

    It takes the two for independent. Runs on the same examples are not: there it is wider than it need be.
    None where one of them was not measured, or stands for an attack that could not run.

    >>> before, after = Estimate.of_counts([(60, 60)]), Estimate.of_counts([(0, 60)])
    >>> found = difference(before, after)
    >>> found.value, found.word
    (-1.0, 'less')
    """
    if first is None or later is None or not first.n or not later.n:
        return None
    value = later.value - first.value
    down = math.hypot(later.value - later.low, first.high - first.value)
    up = math.hypot(later.high - later.value, first.value - first.low)
    return Difference(value=value, low=value - down, high=value + up)
