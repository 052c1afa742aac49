"""How much of a batch a layer's gradient gives away in the clear: Boenisch et al. 2021, Section 8.1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.core.errors import DataError
from seepage.core.types import RowCount
from seepage.metrics.exact import ExactRule


@dataclass(frozen=True, kw_only=True)
class ExtractionScores:
    """Fractions in [0, 1]. The paper defines precision by all neurons but its tables only fit the active ones
    (Table 5, s = .4 on MNIST: A = .022 yet P = .803), so both are given and named."""

    precision_all: float
    """G_0 / N, eq. (9): rows that hold one example, among all rows."""
    precision_active: float
    """The same rows among the active ones, as in the paper's tables."""
    recall: float
    """B_0 / B, eq. (10): true examples that some row holds."""
    active: float
    """A: rows that at least one example activated, among all rows."""


def extraction_scores(
    candidates: Tensor,
    support: Tensor | None,
    rows: RowCount,
    truth: Tensor,
    *,
    rule: ExactRule | None = None,
) -> ExtractionScores:
    """Extraction-precision and -recall of candidates (k, ...) read from `rows.total` gradient rows.

    `support` (k,) says how many rows were merged into each candidate (None: one each). A candidate counts
    when it is the same as some true example by `rule`: the paper's "distance of zero", with room for
    rounding. Without candidates precision and recall are 0; so is `precision_active` when no row was active.

    >>> found = torch.tensor([[0.0, 1.0], [0.5, 0.5]])  # one true example, and a mixture of two
    >>> true = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> extraction_scores(found, torch.tensor([3, 1]), RowCount(total=10, active=6), true)
    ExtractionScores(precision_all=0.3, precision_active=0.5, recall=0.5, active=0.6)
    """
    same = (rule or ExactRule()).every(candidates, truth)  # (k, n)
    return extraction_from_hits(same.any(1), same.any(0), support, rows)


def extraction_from_hits(
    right: Tensor, held: Tensor, support: Tensor | None, rows: RowCount
) -> ExtractionScores:
    """`extraction_scores` where it is known which candidates (k,) are one of the true examples, and which of
    these (n,) are among the candidates.

    >>> right, held = torch.tensor([True, False]), torch.tensor([True, False])
    >>> extraction_from_hits(right, held, torch.tensor([3, 1]), RowCount(total=10, active=6)).recall
    0.5
    """
    _check_rows(rows)
    support = _checked_support(support, len(right), rows)
    if len(held) == 0:
        raise DataError("there are no true examples to compare candidates with: give at least one.")
    rows_with_one = float(support[right.to(support.device)].sum())  # G_0
    return ExtractionScores(
        precision_all=rows_with_one / rows.total,
        precision_active=rows_with_one / rows.active if rows.active else 0.0,
        recall=int(held.sum()) / len(held),  # B_0 / B
        active=rows.active / rows.total,
    )


def _check_rows(rows: RowCount) -> None:
    if not (rows.total > 0 and 0 <= rows.active <= rows.total):
        raise DataError(
            f"{rows.active} active of {rows.total} rows is impossible: "
            "the layer must have rows, and no more of them can be active than there are."
        )


def _checked_support(support: Tensor | None, number: int, rows: RowCount) -> Tensor:
    if support is None:
        support = torch.ones(number, dtype=torch.int64)
    if support.shape != (number,):
        raise DataError(
            f"support has shape {tuple(support.shape)} for {number} candidates: give one row count each."
        )
    if not bool((torch.isfinite(support) & (support >= 0)).all()):
        raise DataError(
            "support holds negative, NaN or infinite row counts: give how many rows each candidate has."
        )
    if float(support.sum()) > rows.active:
        raise DataError(
            f"the candidates claim {int(support.sum())} rows but only {rows.active} were active: "
            "count every gradient row for one candidate only."
        )
    return support
