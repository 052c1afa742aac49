"""Who leaks? Leakage by class, and whether outliers are hit more (Wen et al. 2022, Section 6)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seepage.record.cell import Cell
from seepage.record.packed import where
from seepage.record.refs import Record

_PERMUTATIONS = 2000
_BLOCK = 2**20
"""Ranks that are permuted at a time, for bounded memory."""


class Association(Record):
    """Rank correlation of a trait with leakage, within batches."""

    trait: str
    correlation: float
    """Spearman's, averaged over batches: positive means that examples with a larger trait leak more."""
    p_value: float
    """Two-sided, by permuting the trait within each batch."""
    examples: int
    batches: int


class ClassLeakage(Record):
    """All examples of one class."""

    label: int
    examples: int
    exact: int
    mean: float
    """Of the metric asked for."""


def by_class(cells: Sequence[Cell], metric: str) -> list[ClassLeakage]:
    """Leakage of each class that occurs, over all finished cells."""
    examples = [e for c in cells if c.status == "done" for e in c.examples if metric in e.scores]
    return [
        ClassLeakage(
            label=label,
            examples=len(own),
            exact=sum(e.scores.get("exact") == 1.0 for e in own),
            mean=float(np.mean([e.scores[metric] for e in own])),
        )
        for label in sorted({e.label for e in examples})
        if (own := [e for e in examples if e.label == label])
    ]


def associations(
    cells: Sequence[Cell], metric: str, *, higher_leaks: bool, seed: int = 0
) -> list[Association]:
    """For each trait in the log: do examples with a larger trait leak more?

    Examples of one batch share an update, so ranks are taken, and permuted, within batches only. Batches in
    which the trait or the leakage is the same for all say nothing and are left out.
    """
    done = where(cells, lambda c: c.status == "done" and len(c.examples) > 2)
    traits = sorted({name for c in done for e in c.examples for name in e.traits})
    found = []
    for trait in traits:
        pairs = [_ranks(c, trait, metric, 1.0 if higher_leaks else -1.0) for c in done]
        usable = [pair for pair in pairs if pair is not None]
        if usable:
            found.append(_associate(trait, usable, seed))
    return found


_Ranks = tuple["np.ndarray[tuple[int], np.dtype[np.float64]]", "np.ndarray[tuple[int], np.dtype[np.float64]]"]


def _ranks(cell: Cell, trait: str, metric: str, sign: float) -> _Ranks | None:
    """Standardised ranks of trait and leakage in one batch; their mean product is Spearman's correlation."""
    rows = [
        (e.traits[trait], sign * e.scores[metric])
        for e in cell.examples
        if np.isfinite(e.traits.get(trait, np.nan)) and np.isfinite(e.scores.get(metric, np.nan))
    ]
    if len(rows) < 3:
        return None
    from scipy.stats import rankdata  # late: opening a log need not wait for it

    x, y = (rankdata(column) for column in zip(*rows, strict=True))
    if x.std() == 0 or y.std() == 0:
        return None
    return (x - x.mean()) / x.std(), (y - y.mean()) / y.std()


def _associate(trait: str, batches: Sequence[_Ranks], seed: int) -> Association:
    rng = np.random.default_rng(seed)
    total = sum(len(x) for x, _ in batches)
    observed = sum(float(x @ y) for x, y in batches) / total
    permuted = np.zeros(_PERMUTATIONS)
    for x, y in batches:
        for part in np.array_split(permuted, -(-_PERMUTATIONS * len(x) // _BLOCK)):
            shuffled = rng.permuted(np.tile(x, (len(part), 1)), axis=1)  # (permutations, n)
            np.add(part, shuffled @ y, out=part)
    extreme = int((np.abs(permuted / total) >= abs(observed) - 1e-12).sum())
    return Association(
        trait=trait,
        correlation=observed,
        p_value=(extreme + 1) / (_PERMUTATIONS + 1),
        examples=total,
        batches=len(batches),
    )
