"""Whether a reconstruction is the very same example."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from seepage.errors import DataError
from seepage.metrics.pairs import are_tokens, by_examples, check_pair, wide

EXACT_TOLERANCE = 1e-3
"""Largest error of an exact copy, as a fraction of the data range: below half an 8-bit step (1/510, about
0.002), so that a picture and its copy are the same after rounding to 8 bits."""


def check_unit(data_range: float | Tensor, what: str = "data_range") -> None:
    """Refuse a unit that cannot be divided by."""
    unit = torch.as_tensor(data_range)
    if not bool((torch.isfinite(unit) & (unit > 0)).all()):
        raise DataError(
            f"{what} must be positive and finite, got {data_range}: give highest minus lowest value."
        )


def check_tolerance(tolerance: float) -> None:
    """Refuse a tolerance that nothing, or everything, would meet."""
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise DataError(
            f"tolerance must be zero or a positive number, got {tolerance}: 0.001 is the default."
        )


def exact_match(
    recon: Tensor, truth: Tensor, *, tolerance: float = EXACT_TOLERANCE, data_range: float | Tensor = 1.0
) -> Tensor:
    """(n,) bool: the largest absolute error is at most `tolerance` times `data_range`.

    `data_range` is one number, or one per value (e.g. per column of a table) that broadcasts over an example.
    Token ids match when every position is equal, whatever the tolerance.

    >>> exact_match(torch.tensor([[0.5, 0.5], [0.5, 0.6]]), torch.full((2, 2), 0.5))
    tensor([ True, False])
    """
    check_tolerance(tolerance)
    check_unit(data_range)
    check_pair(recon, truth)
    if are_tokens(truth):
        return (recon == truth).flatten(1).all(1)
    unit = data_range if isinstance(data_range, float | int) else wide(data_range.to(truth.device))

    def largest(r: Tensor, t: Tensor) -> Tensor:
        return ((r - t).abs() / unit).flatten(1).amax(1)

    return by_examples(largest, recon, truth) <= tolerance
