"""Figures with their intervals in rows, several series beside each other: runs, or ours and a paper's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seepage.report.charts.axes import Axis

WIDTH, LEFT, RIGHT = 640.0, 12.0, 628.0
TOP, HEAD, STEP = 26.0, 22.0, 17.0
"""Above the first row; a row's name; one series in it."""
KINDS = ("first", "second", "third", "fourth", "fifth", "sixth")
"""Of marks: the style of each series, by shape and by colour. More runs than these repeat them."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One figure: where it stands, and where its interval ends."""

    x: float
    low: float
    high: float
    y: float
    kind: str
    title: str


@dataclass(frozen=True, kw_only=True)
class IntervalRow:
    """What is compared in one row."""

    name: str
    y: float
    marks: tuple[Mark, ...]


@dataclass(frozen=True, kw_only=True)
class IntervalChart:
    """Everything that the template draws."""

    width: float
    height: float
    rows: tuple[IntervalRow, ...]
    ticks: tuple[tuple[float, str], ...]
    series: tuple[tuple[str, str], ...]
    """Style and name."""
    description: str


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A value with the ends of its interval, which may be the value itself, and what a pointer is told."""

    value: float
    low: float
    high: float
    title: str


def draw_intervals(
    rows: Sequence[tuple[str, Sequence[Figure | None]]],
    series: Sequence[str],
    *,
    percent: bool,
    what: str,
    reach: tuple[float, float] | None = None,
) -> IntervalChart | None:
    """One line for each figure of each row; None where there is no figure at all.

    reach: of the axis, where it does not follow from the figures.

    >>> one = Figure(value=0.5, low=0.25, high=0.75, title="half")
    >>> rows = [("a", [one, None])]
    >>> chart = draw_intervals(rows, ["before", "after"], percent=True, what="x", reach=(0, 1))
    >>> [round(mark.x) for mark in chart.rows[0].marks], chart.ticks[0][1], chart.ticks[-1][1]
    ([320], '0 %', '100 %')
    """
    found = [one for _, figures in rows for one in figures if one is not None]
    if not found:
        return None
    ends = reach or (min(one.low for one in found), max(one.high for one in found))
    axis, ticks = Axis.around(ends, start=LEFT, end=RIGHT)
    shown, y = [], TOP
    for name, figures in rows:
        known = [(i, one) for i, one in enumerate(figures) if one is not None]
        marks = tuple(
            Mark(
                x=axis.place(one.value),
                low=axis.place(max(axis.low, one.low)),
                high=axis.place(min(axis.high, one.high)),
                y=y + HEAD + STEP * line,
                kind=KINDS[i % len(KINDS)],
                title=f"{series[i]}: {one.title}",
            )
            for line, (i, one) in enumerate(known)
        )
        shown.append(IntervalRow(name=name, y=y + 8, marks=marks))
        y += HEAD + STEP * max(1, len(known)) + 6
    return IntervalChart(
        width=WIDTH,
        height=y + 30,
        rows=tuple(shown),
        ticks=tuple((axis.place(t), f"{100 * t:g} %" if percent else f"{t:g}") for t in ticks),
        series=tuple((KINDS[i % len(KINDS)], name) for i, name in enumerate(series)),
        description=f"{what}: {len(rows)} rows, {len(series)} figures in each at most; the table has them.",
    )
