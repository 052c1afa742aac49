"""How many examples of each class are behind an update, without seeing one.

Attacks ask by the functions here; the machinery behind them is loaded when it is first asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from seepage.core.errors import NotApplicable
from seepage.core.types import Exchange, Knowledge

if TYPE_CHECKING:
    from seepage.labels.counts import LabelEstimate


def infer_label_counts(
    exchange: Exchange, known: Knowledge, *, method: str = "auto", max_examples: int = 256
) -> LabelEstimate:
    """The estimate of `labels.counts.infer_label_counts`, which has the arguments and an example."""
    from seepage.labels import counts  # here: replays and fits of local training are loaded with it

    return counts.infer_label_counts(exchange, known, method=method, max_examples=max_examples)


def counts_if_inferred(exchange: Exchange, known: Knowledge) -> tuple[Tensor | None, tuple[str, ...]]:
    """(C,) examples of each class, None where the update does not tell; and how they were come by."""
    try:
        estimate = infer_label_counts(exchange, known)
    except NotApplicable as reason:
        return None, (f"Labels were not inferred: {reason}",)
    return estimate.counts, (f"Labels were inferred by {estimate.method}.", *estimate.notes)
