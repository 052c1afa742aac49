"""A study in one picture: accuracy to the right, leakage upwards, one mark a defense."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from seepage.record import Estimate, epsilon_text

if TYPE_CHECKING:
    from seepage.report.study.result import DefenseRow

WIDTH, HEIGHT = 640, 420
LEFT, RIGHT, TOP, BOTTOM = 90, 600, 44, 356
LINE, LETTER = 20, 9
"""Height of a label and width of a letter, as on narrow screens, which enlarge the text."""
MARK, BESIDE = 7, 12
"""Half the width of a mark; from its middle to its label."""


@dataclass(frozen=True, kw_only=True)
class PointMark:
    """One defense point, in the picture's units."""

    number: int
    """Its line in the table."""
    x: float
    y: float
    low: float
    high: float
    """Ends of the accuracy's 95 % interval."""
    top: float
    bottom: float
    """Ends of the leakage's."""
    label: str
    label_x: float
    label_y: float
    anchor: str
    moved: bool
    """The label had to give way to another: a line leads to it."""
    front: bool
    kind: str
    """none, heuristic or formal."""
    title: str


@dataclass(frozen=True, kw_only=True)
class TradeoffPlot:
    """Everything that the template draws."""

    marks: tuple[PointMark, ...]
    front: str
    """The least leakage at each accuracy, as SVG points: stairs up to the most accurate point."""
    curves: tuple[str, ...]
    """Through the points of one mechanism at several epsilons, as SVG points."""
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]


def build_plot(rows: Sequence[DefenseRow]) -> TradeoffPlot | None:
    """None when no row has both figures."""
    known = [
        (n, r, r.accuracy, r.leakage)
        for n, r in enumerate(rows)
        if r.accuracy is not None and r.leakage is not None
    ]
    if not known:
        return None
    means = [accuracy.value for _, _, accuracy, _ in known]
    low = math.floor(10 * min(means) - 0.2) / 10
    high = math.ceil(10 * max(means) + 0.2) / 10
    marks: list[PointMark] = []
    spots = [(_x(accuracy.value, low, high), _y(leakage.value)) for _, _, accuracy, leakage in known]
    # From below upwards, so that labels which have to give way move up into free space.
    for number, row, accuracy, leakage in sorted(known, key=lambda one: (one[3].value, one[0])):
        marks.append(_mark(number, row, accuracy, leakage, (low, high), marks, spots))
    front = sorted((m.x, m.y) for m in marks if m.front)
    marks.sort(key=lambda mark: mark.kind == "none")  # drawn last, for it must not be hidden
    ticks = round((high - low) * 10)
    step = 1 if ticks <= 6 else 2
    return TradeoffPlot(
        marks=tuple(marks),
        front=_as_points(_stairs(front)),
        curves=tuple(_as_points(line) for line in _curves(known, (low, high))),
        x_ticks=tuple(
            (_x(low + i / 10, low, high), f"{100 * low + 10 * i:.0f} %") for i in range(0, ticks + 1, step)
        ),
        y_ticks=tuple((_y(v), f"{100 * v:.0f} %") for v in (0.0, 0.25, 0.5, 0.75, 1.0)),
    )


def _mark(
    number: int,
    row: DefenseRow,
    accuracy: Estimate,
    leakage: Estimate,
    ends: tuple[float, float],
    placed: Sequence[PointMark],
    spots: Sequence[tuple[float, float]],
) -> PointMark:
    x, y = _x(accuracy.value, *ends), _y(leakage.value)
    label = str(number) if row.point.epsilon is None else f"{number}: ε {epsilon_text(row.point.epsilon)}"
    label_x, label_y, to_left = _free_place(label, x, y, placed, spots)
    return PointMark(
        number=number,
        x=x,
        y=y,
        low=max(LEFT, _x(accuracy.low, *ends)),
        high=min(RIGHT, _x(accuracy.high, *ends)),
        top=_y(leakage.high if leakage.n else leakage.value),
        bottom=_y(leakage.low),
        label=label,
        label_x=label_x,
        label_y=label_y,
        anchor="end" if to_left else "start",
        moved=label_y != y - 8,
        front=row.pareto,
        kind="formal" if row.point.formal else row.point.guarantee,
        title=row.point.title,
    )


def _free_place(
    label: str, x: float, y: float, placed: Sequence[PointMark], spots: Sequence[tuple[float, float]]
) -> tuple[float, float, bool]:
    """The nearest place beside the mark, on the picture's inner side at first, where nothing else is."""
    inner = x > (LEFT + RIGHT) / 2
    shifts = [sign * step * LINE / 2 for step in range(2 * HEIGHT // LINE) for sign in (-1, 1)]
    places = [
        (x - BESIDE if to_left else x + BESIDE, y - 8 + shift, to_left)
        for shift in shifts
        for to_left in (inner, not inner)
    ]
    for at_x, at_y, to_left in places:
        end = at_x - LETTER * len(label) if to_left else at_x + LETTER * len(label)
        inside = 0 <= end <= WIDTH and LINE <= at_y <= BOTTOM
        if (
            inside
            and not any(_overlap(label, at_x, at_y, to_left, other) for other in placed)
            and not any(_covers(label, at_x, at_y, to_left, spot) for spot in spots)
        ):
            return at_x, at_y, to_left
    return places[0]


def _overlap(label: str, x: float, y: float, to_left: bool, other: PointMark) -> bool:
    """Whether a label here would run into another mark's label."""
    start = x - LETTER * len(label) if to_left else x
    other_width = LETTER * len(other.label)
    other_start = other.label_x - other_width if other.anchor == "end" else other.label_x
    beside = start >= other_start + other_width + MARK or other_start >= start + LETTER * len(label) + MARK
    return not beside and abs(other.label_y - y) < LINE


def _covers(label: str, x: float, y: float, to_left: bool, spot: tuple[float, float]) -> bool:
    """Whether a label here would hide a mark."""
    start = x - LETTER * len(label) if to_left else x
    across = start - MARK < spot[0] < start + LETTER * len(label) + MARK
    return across and y - LINE + MARK / 2 < spot[1] < y + MARK


def _curves(
    known: Sequence[tuple[int, DefenseRow, Estimate, Estimate]], ends: tuple[float, float]
) -> list[list[tuple[float, float]]]:
    """From the smallest epsilon to the largest, one line for each mechanism that has several."""
    lines: dict[str, dict[float, tuple[float, float]]] = {}
    for _, row, accuracy, leakage in known:
        if row.point.epsilon is not None:
            spot = _x(accuracy.value, *ends), _y(leakage.value)
            lines.setdefault(row.point.defense.name, {})[row.point.epsilon] = spot
    return [[spots[value] for value in sorted(spots)] for spots in lines.values() if len(spots) > 1]


def _as_points(line: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in line)


def _stairs(front: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Whoever wants more accuracy than a point of the front has must take the leakage of the next."""
    path = list(front[:1])
    for x, y in front[1:]:
        path += [(path[-1][0], y), (x, y)]
    return path


def _x(accuracy: float, low: float, high: float) -> float:
    return LEFT + (RIGHT - LEFT) * (accuracy - low) / (high - low)


def _y(leakage: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * leakage
