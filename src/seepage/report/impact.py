"""Who leaks: sentences, scatter plots and a table by class for the report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from seepage.core.metric import MetricFacts
from seepage.names.metrics import leading
from seepage.record import Association, Cell, Header, associations, by_class
from seepage.record.packed import where
from seepage.report.charts.scatter import Scatter, draw_scatter
from seepage.report.words import class_name, number, plural, text, with_unit

TRAITS = {"loss": "loss under the honest model", "distance": "distance from the class mean"}
SURE = 0.05


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
    done = where(cells, lambda c: c.status == "done" and c.examples != ())
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
    title = TRAITS.get(trait, trait)
    return draw_scatter(
        pairs,
        title=title,
        say=lambda x, y: f"{with_unit(what, y)}, {trait} {x:.3g}",
        describe=lambda shown: f"{what.title} of {shown} over its {title}",
    )
