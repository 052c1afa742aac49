"""One dot an example, stacked: the attack's lane above the guess's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seepage.core.metric import SHARE, MetricFacts
from seepage.report.charts.axes import Axis
from seepage.report.words import text, with_unit

WIDTH, LANE, SIDE, TOP = 560.0, 64.0, 20.0, 28.0
BINS = 56
DOTS_UP_TO = 300


@dataclass(frozen=True)
class ExampleMark:
    """A dot (centre x, y, radius) or, among very many examples, a bar (left, top, width, height)."""

    shape: str
    x: float
    y: float
    width: float
    height: float
    title: str
    """What it stands for, shown where a pointer rests on it."""


@dataclass(frozen=True)
class Lane:
    """One stack of marks: the attack's or the guess's."""

    label: str
    css: str
    top: float
    floor: float
    mean_x: float
    mean: str
    marks: tuple[ExampleMark, ...]


@dataclass(frozen=True)
class DotPlot:
    """Geometry of one inline SVG."""

    width: float
    height: float
    lanes: tuple[Lane, ...]
    ticks: tuple[tuple[float, str], ...]
    description: str


def draw(what: MetricFacts, values: Sequence[float], guesses: Sequence[float]) -> DotPlot:
    """Two lanes on one axis: each example a dot, dots of one bin stacked; bars when there are very many."""
    axis, ticks = Axis.around([*values, *guesses], start=SIDE, end=WIDTH - SIDE)
    lanes: list[Lane] = []
    for label, css, series in (("attack", "attack", values), ("baseline guess", "guess", guesses)):
        if series:
            top = TOP + len(lanes) * (LANE + TOP)
            mean = float(np.mean(series))
            marks = _marks([(axis.place(v), v) for v in series], top + LANE, what)
            lanes.append(
                Lane(label, css, top, top + LANE, axis.place(mean), with_unit(what, mean), tuple(marks))
            )
    unit = f" in {what.suffix}" if what.suffix else ""
    spans = "; ".join(
        f"{label} from {text(what, min(s))} to {text(what, max(s))}, mean {text(what, float(np.mean(s)))}"
        for label, s in (("attack", values), ("baseline guess", guesses))
        if s
    )
    return DotPlot(
        WIDTH,
        lanes[-1].floor + 34,
        tuple(lanes),
        tuple((axis.place(t), f"{100 * t:g} %" if what.unit == SHARE else f"{t:g}") for t in ticks),
        f"Distribution of {what.title}{unit} over {len(values)} examples: {spans}.",
    )


def _marks(placed: Sequence[tuple[float, float]], floor: float, what: MetricFacts) -> list[ExampleMark]:
    """Stack by bin. A stack higher than the lane is pressed together, so that it always fits."""
    bin_width = (WIDTH - 2 * SIDE) / BINS
    bins: dict[int, list[float]] = {}
    for x, value in sorted(placed):
        bins.setdefault(min(BINS - 1, int((x - SIDE) / bin_width)), []).append(value)
    tallest = max(len(b) for b in bins.values())
    if len(placed) > DOTS_UP_TO:
        unit = LANE / tallest
        return [
            ExampleMark(
                "bar",
                SIDE + i * bin_width,
                floor - len(b) * unit,
                bin_width - 1,
                len(b) * unit,
                f"{len(b)} examples, {text(what, b[0])} to {with_unit(what, b[-1])}",
            )
            for i, b in bins.items()
        ]
    radius = 4.2
    step = min(2 * radius + 0.6, (LANE - 2 * radius) / max(1, tallest - 1))
    middle = SIDE + bin_width / 2
    return [
        ExampleMark(
            "dot",
            middle + i * bin_width,
            floor - radius - 1 - k * step,
            radius,
            radius,
            with_unit(what, value),
        )
        for i, b in bins.items()
        for k, value in enumerate(b)
    ]
