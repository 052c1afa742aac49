"""Leakage is not uniform: the spread of the main metric over examples, and who leaked most and least."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seepage.core.metric import SHARE, MetricFacts
from seepage.names.metrics import leading
from seepage.record import Cell, Example, Header
from seepage.report.words import class_name, text, with_unit

WIDTH, LANE, SIDE, TOP = 560.0, 64.0, 20.0, 28.0
BINS = 56
DOTS_UP_TO = 300
QUANTILES = ((0.0, "lowest"), (0.1, "10 %"), (0.25, "25 %"), (0.5, "median"), (0.75, "75 %"), (0.9, "90 %"))


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


@dataclass(frozen=True)
class Extreme:
    """One example with its place and scores, for the lists of extremes."""

    index: int
    seed: int
    client: int
    class_name: str
    score: str
    guess: str


@dataclass(frozen=True)
class Distribution:
    """Everything the section shows about the distribution."""

    metric: MetricFacts
    plot: DotPlot
    quantiles: tuple[tuple[str, str, str], ...]
    most: tuple[Extreme, ...]
    least: tuple[Extreme, ...]
    has_guess: bool


def build_distribution(header: Header, cells: Sequence[Cell], *, named: int = 3) -> Distribution | None:
    """The spread over all finished cells of one attack; None where fewer than two examples have a score."""
    done = [c for c in cells if c.status == "done" and c.examples]
    if not done:
        return None
    what = leading(done[0].examples[0].scores, header.input.modality)
    scored = [(c, e) for c in done for e in c.examples if math.isfinite(e.scores.get(what.name, math.nan))]
    if len(scored) < 2:
        return None
    scored.sort(key=lambda pair: pair[1].scores[what.name], reverse=what.higher_leaks)
    values = [e.scores[what.name] for _, e in scored]
    guesses = [g for _, e in scored if math.isfinite(g := e.baseline.get(what.name, math.nan))]

    ends = min(named, len(scored) // 2)
    return Distribution(
        what,
        draw(what, values, guesses),
        _quantiles(what, values, guesses),
        tuple(_named(header, what, cell, example) for cell, example in scored[:ends]),
        tuple(_named(header, what, cell, example) for cell, example in scored[-ends:][::-1]),
        bool(guesses),
    )


def _named(header: Header, what: MetricFacts, cell: Cell, example: Example) -> Extreme:
    guess = example.baseline.get(what.name, math.nan)
    score, name = text(what, example.scores[what.name]), class_name(header, example.label)
    return Extreme(example.index, cell.seed, example.client, name, score, text(what, guess))


def _quantiles(
    what: MetricFacts, values: Sequence[float], guesses: Sequence[float]
) -> tuple[tuple[str, str, str], ...]:
    rows = []
    for q, label in (*QUANTILES, (1.0, "highest")):
        guess = text(what, float(np.quantile(guesses, q))) if guesses else "–"
        rows.append((label, text(what, float(np.quantile(values, q))), guess))
    return tuple(rows)


def draw(what: MetricFacts, values: Sequence[float], guesses: Sequence[float]) -> DotPlot:
    """Two lanes on one axis: each example a dot, dots of one bin stacked; bars when there are very many."""
    low, high = min([*values, *guesses]), max([*values, *guesses])
    ticks = nice_ticks(low, high)
    low, high = min(low, ticks[0]), max(high, ticks[-1])
    inner = WIDTH - 2 * SIDE

    def place(value: float) -> float:
        return SIDE + inner * (value - low) / (high - low)

    lanes: list[Lane] = []
    for label, css, series in (("attack", "attack", values), ("baseline guess", "guess", guesses)):
        if series:
            top = TOP + len(lanes) * (LANE + TOP)
            mean = float(np.mean(series))
            marks = _marks([(place(v), v) for v in series], top + LANE, what)
            lanes.append(Lane(label, css, top, top + LANE, place(mean), with_unit(what, mean), tuple(marks)))
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
        tuple((place(t), f"{100 * t:g} %" if what.unit == SHARE else f"{t:g}") for t in ticks),
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
