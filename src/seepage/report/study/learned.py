"""Whether a training learned anything: without that, what a defense costs is not known."""

from __future__ import annotations

import math

from seepage.report.study.result import DefenseRow
from seepage.report.words import percent

ERRORS = 3.0
"""Standard errors above chance: by luck alone one training in 700 gets there."""


def chance_of(row: DefenseRow, classes: int) -> float:
    """What guessing reaches: the share of the largest class in the test, at least 1 / classes."""
    return max(1 / max(2, classes), row.chance or 0.0)


def learned(row: DefenseRow, classes: int) -> bool:
    """Its accuracy lies above chance by three standard errors."""
    if row.accuracy is None:
        return False
    return row.accuracy.value > chance_of(row, classes) + _margin(row, classes)


def why_not(row: DefenseRow, classes: int) -> str:
    """One sentence on an undefended training that learned nothing, with the remedy."""
    assert row.accuracy is not None
    chance = chance_of(row, classes)
    return (
        "No recommendation: the model did not learn. Without a defense it reaches "
        f"{percent(row.accuracy)} of {row.accuracy.n} held-out examples, where guessing has "
        f"{percent(chance)} and {ERRORS:g} standard errors are {percent(_margin(row, classes))}: raise "
        "training.rounds or training.examples, or start from trained weights."
    )


def _margin(row: DefenseRow, classes: int) -> float:
    assert row.accuracy is not None
    chance, reached = chance_of(row, classes), row.accuracy.value
    variance = max(chance * (1 - chance), reached * (1 - reached))
    return ERRORS * math.sqrt(variance / max(1, row.accuracy.n))
