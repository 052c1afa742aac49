"""Who leaks: sentences, scatter plots and a table by class for the report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from seepage.core.metric import MetricFacts
from seepage.names.metrics import leading
from seepage.record import Association, Cell, Header, associations, by_class
from seepage.report.distribution import nice_ticks
from seepage.report.words import class_name, number, plural, text, with_unit

TRAITS = {"loss": "loss under the honest model", "distance": "distance from the class mean"}
SURE = 0.05
DOTS = 1000
"""Most that a plot draws: of more examples it shows every so-manieth. Cost: the size of the page."""
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 320.0, 200.0, 48.0, 40.0, 8.0


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Impact:
    """The section of one attack."""

    sentences: tuple[str, ...]
    plots: tuple[Scatter, ...]
    classes: tuple[tuple[str, int, int, str], ...]
    """Name, examples, exact ones, mean of the metric."""
    metric: str


def build_impact(header: Header, cells: Sequence[Cell]) -> Impact | None:
    """None where the log has no traits, or fewer than three examples in every batch."""
    done = [c for c in cells if c.status == "done" and c.examples]
    if not done or not any(e.traits for c in done for e in c.examples):
        return None
    what = leading(done[0].examples[0].scores, header.input.modality)
    found = associations(done, what.name, higher_leaks=what.higher_leaks)
    classes = by_class(done, what.name)
    if not found:
        return None
    return Impact(
        sentences=tuple(in_words(a) for a in found),
        plots=tuple(_scatter(done, a.trait, what) for a in found),
        classes=tuple(
            (class_name(header, c.label), c.examples, c.exact, text(what, c.mean)) for c in classes
        ),
        metric=what.words,
    )


def in_words(found: Association) -> str:
    """One sentence with the test's result; never more certain than the test.

    >>> in_words(Association(trait="loss", correlation=0.4, p_value=0.2, examples=9, batches=1))
    'No sign that leakage depends on the loss under the honest model (rank correlation +0.40, p = 0.20, \
9 examples in 1 batch).'
    """
    trait = TRAITS.get(found.trait, found.trait)
    p_value = number(found.p_value, 3 if found.p_value < 0.1 else 2)
    size = f"{plural(found.examples, 'example')} in {plural(found.batches, 'batch', 'batches')}"
    equals = "" if p_value.startswith("<") else "= "
    figures = f"rank correlation {found.correlation:+.2f}, p {equals}{p_value}, {size}"
    if found.p_value > SURE:
        return f"No sign that leakage depends on the {trait} ({figures})."
    more = "larger" if found.correlation > 0 else "smaller"
    return f"Examples with a {more} {trait} leak more ({figures})."


def _scatter(cells: Sequence[Cell], trait: str, what: MetricFacts) -> Scatter:
    pairs = [
        (e.traits[trait], e.scores[what.name])
        for c in cells
        for e in c.examples
        if math.isfinite(e.traits.get(trait, math.nan)) and math.isfinite(e.scores.get(what.name, math.nan))
    ]
    drawn = pairs[:: -(-len(pairs) // DOTS)]
    across, up = nice_ticks(*_ends(x for x, _ in pairs)), nice_ticks(*_ends(y for _, y in pairs))

    def x_of(value: float) -> float:
        return LEFT + 6 + (value - across[0]) / (across[-1] - across[0]) * (WIDTH - LEFT - 20)

    def y_of(value: float) -> float:
        return HEIGHT - BOTTOM - (value - up[0]) / (up[-1] - up[0]) * (HEIGHT - BOTTOM - TOP)

    title = TRAITS.get(trait, trait)
    return Scatter(
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        points=tuple((x_of(x), y_of(y), f"{with_unit(what, y)}, {trait} {x:.3g}") for x, y in drawn),
        ticks_x=tuple((x_of(t), f"{t:g}") for t in across),
        ticks_y=tuple((y_of(t), f"{t:g}") for t in up),
        title=title,
        description=f"{what.title} of {_shown(len(drawn), len(pairs))} over its {title}",
    )


def _shown(drawn: int, there: int) -> str:
    return "each example" if drawn == there else f"{drawn:,} of {there:,} examples, evenly picked, each"


def _ends(values: object) -> tuple[float, float]:
    listed = list(values)  # type: ignore[call-overload]
    return min(listed), max(listed)
