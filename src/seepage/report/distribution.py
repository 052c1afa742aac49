"""Leakage is not uniform: the spread of the main metric over examples, and who leaked most and least."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seepage.core.metric import MetricFacts
from seepage.names.metrics import leading
from seepage.record import Cell, Example, Header
from seepage.record.packed import where
from seepage.report.charts.lanes import DotPlot, draw
from seepage.report.words import class_name, text

QUANTILES = ((0.0, "lowest"), (0.1, "10 %"), (0.25, "25 %"), (0.5, "median"), (0.75, "75 %"), (0.9, "90 %"))


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
    done = where(cells, lambda c: c.status == "done" and c.examples != ())
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
