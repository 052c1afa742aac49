"""One dot an example: a trait to the right, leakage upwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from seepage.report.charts.axes import Axis

DOTS = 1000
"""Most that a plot draws: of more examples it shows every so-manieth. Cost: the size of the page."""
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 320.0, 200.0, 48.0, 40.0, 8.0


@dataclass(frozen=True, kw_only=True)
class Scatter:
    """One dot an example: a trait to the right, leakage upwards."""

    width: float
    height: float
    left: float
    points: tuple[tuple[float, float, str], ...]
    """Place, and what a pointer that rests on it is told."""
    ticks_x: tuple[tuple[float, str], ...]
    ticks_y: tuple[tuple[float, str], ...]
    title: str
    description: str


def draw_scatter(
    pairs: Sequence[tuple[float, float]],
    *,
    title: str,
    say: Callable[[float, float], str],
    describe: Callable[[str], str],
) -> Scatter:
    """say: from a pair to what its dot tells. describe: the picture in words, from what it shows."""
    drawn = pairs[:: -(-len(pairs) // DOTS)]
    across, ticks_x = Axis.around([x for x, _ in pairs], start=LEFT + 6, end=WIDTH - 14)
    up, ticks_y = Axis.around([y for _, y in pairs], start=HEIGHT - BOTTOM, end=TOP)
    return Scatter(
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        points=tuple((across.place(x), up.place(y), say(x, y)) for x, y in drawn),
        ticks_x=tuple((across.place(t), f"{t:g}") for t in ticks_x),
        ticks_y=tuple((up.place(t), f"{t:g}") for t in ticks_y),
        title=title,
        description=describe(_shown(len(drawn), len(pairs))),
    )


def _shown(drawn: int, there: int) -> str:
    return "each example" if drawn == there else f"{drawn:,} of {there:,} examples, evenly picked, each"
