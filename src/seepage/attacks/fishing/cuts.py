"""Where to cut next, from the answers so far alone (Wen et al. 2022, Section 3.4 and Algorithm 1).

Examples lie on a line, at their scores s = w.f. A cut at theta tells how many lie below it and the sum of
their scores. Algorithm 1 as printed does not end (a cut below the minimum gives 0/0, and `2c - f` is the
other half's mean only for equal halves), so intervals are kept with their count and sum: one that holds two
or more is cut at its own mean, which always lies strictly between its lowest and highest score. n leaves
need n - 1 cuts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

WHOLE = 1e-2
"""A count is whole within this; otherwise an example lies on the cut and is caught in part. No plateau test
yet."""
ALONE = 1e-3
"""A single example's count is 1 within this. No plateau test yet."""
CLEAR = 10.0
"""beta * |theta - mean| from which on an example is wholly on one side. Derived: e^-10 = 5e-5 of it is on the
other, less than `ALONE`."""
NUDGE = 2 * CLEAR
"""beta * shift of a cut that an example lies on. Derived: `CLEAR` on either side of the example."""


@dataclass(frozen=True)
class Answer:
    """What a cut at theta told: number of examples below it, and the sum of their scores."""

    theta: float
    count: float
    total: float


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Examples between two cuts. `low` and `high` are answers: their gradients are differenced later."""

    low: Answer
    high: Answer
    tried: tuple[float, ...] = ()
    """Cuts inside that an example lay on, or that left one side empty."""

    @property
    def count(self) -> int:
        return round(self.high.count - self.low.count)

    @property
    def mean(self) -> float:
        # By the count as read, not rounded: of two identical examples on a cut, 1.002 may be below it, and
        # their sum divided by 1 would lie apart from the cut.
        return (self.high.total - self.low.total) / (self.high.count - self.low.count)


@dataclass(frozen=True, kw_only=True)
class Sharpness:
    """What can be told apart with this beta in this arithmetic."""

    beta: float
    scale: float
    """Typical size of a score."""
    examples: int
    epsilon: float

    @property
    def clear(self) -> float:
        """Distance of a mean from a cut that proves which side it is on, rounding of the sums included."""
        return CLEAR / self.beta + self.rounding

    @property
    def rounding(self) -> float:
        """Error of a sum of all scores, which is what an interval's sum is a difference of.

        Sums of features are rounded one by one, so their errors add up at random along w: this is several
        standard deviations.
        """
        return self.epsilon * self.scale * self.examples / 4

    @property
    def nudge(self) -> float:
        return NUDGE / self.beta + 8 * self.epsilon * self.scale + 2 * self.rounding


@dataclass(frozen=True)
class Tree:
    """The state after some cuts: its leaves, from the lowest up."""

    intervals: tuple[Interval, ...]


def grow(tree: Tree, answer: Answer, sharp: Sharpness) -> Tree:
    """Apply one answer.

    >>> sharp = Sharpness(beta=1e6, scale=1.0, examples=3, epsilon=1e-7)
    >>> all_of_them = Interval(low=Answer(-math.inf, 0, 0.0), high=Answer(math.inf, 3, 6.0))
    >>> tree = grow(Tree((all_of_them,)), Answer(2.5, 2, 3.0), sharp)
    >>> [(part.count, part.mean) for part in tree.intervals]
    [(2, 1.5), (1, 3.0)]
    """
    parts: list[Interval] = []
    for part in tree.intervals:
        hit = part.low.theta < answer.theta < part.high.theta
        parts += _split(part, answer, sharp) if hit else [part]
    return Tree(tuple(parts))


def _split(part: Interval, answer: Answer, sharp: Sharpness) -> list[Interval]:
    """Two intervals, or one: narrower if a side is empty, unchanged if an example lies on the cut."""
    tried = (*part.tried, answer.theta)
    below, above = answer.count - part.low.count, part.high.count - answer.count
    whole = abs(below - round(below)) <= WHOLE and -0.5 < below < part.count + 0.5
    if not whole:
        return [replace(part, tried=tried)]
    lower = Interval(low=part.low, high=answer, tried=tried)
    upper = Interval(low=answer, high=part.high, tried=tried)
    if round(below) == 0 or round(above) == 0:
        return [upper if round(below) == 0 else lower]
    if not clear_of(lower, sharp) or not clear_of(upper, sharp):
        return [replace(part, tried=tried)]
    return [lower, upper]


def clear_of(part: Interval, sharp: Sharpness) -> bool:
    """The interval's mean is clearly inside both of its cuts."""
    return part.mean - part.low.theta >= sharp.clear and part.high.theta - part.mean >= sharp.clear


def is_isolated(part: Interval, sharp: Sharpness) -> bool:
    """The sound stop test: exactly one example, wholly between the cuts. Decided from answers alone."""
    return abs(part.high.count - part.low.count - 1) <= ALONE and clear_of(part, sharp)


def next_cut(part: Interval, sharp: Sharpness) -> float | None:
    """The interval's mean, or beside it if an example lies there; None: its examples are tied.

    >>> sharp = Sharpness(beta=1e6, scale=1.0, examples=2, epsilon=1e-7)
    >>> pair = Interval(low=Answer(-math.inf, 0, 0.0), high=Answer(math.inf, 2, 3.0))
    >>> next_cut(pair, sharp)
    1.5
    """
    if part.count < 2:
        return None
    near = sharp.nudge / 2
    # The mean of two is as far from one as from the other: if one lies on it, both do.
    shifts = (0.0,) if part.count == 2 else (0.0, sharp.nudge, -sharp.nudge)
    for theta in (part.mean + shift for shift in shifts):
        inside = part.low.theta + near < theta < part.high.theta - near
        if inside and all(abs(theta - known) > near for known in part.tried):
            return theta
    return None


def full_bound(examples: int) -> int:
    """Most queries of the full attack: two for the ends, n - 1 cuts, a quarter more for examples on a cut.

    >>> [full_bound(n) for n in (1, 8, 32)]
    [3, 12, 42]
    """
    return 2 + (examples - 1) + (examples // 4 + 1)


def one_shot_bound(examples: int) -> int:
    """Most queries until one example is alone: the smaller side of each cut is at most half.

    Two for the ends and log2 n halvings; as many again and six for examples on a cut and for ties.

    >>> [one_shot_bound(n) for n in (1, 64, 256)]
    [8, 20, 24]
    """
    return 8 + 2 * int(math.log2(examples))
