"""Whether a reconstruction is the very same example: one rule for matching, scoring and counting."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.core.errors import DataError
from seepage.metrics.pairs import BLOCK, are_tokens, by_examples, check_comparable, check_pair, wide

EXACT_TOLERANCE = 1e-3
"""Largest error of an exact copy, as a fraction of the data range. Derived: below half an 8-bit step (1/510,
about 0.002), so that a picture and its copy are the same after rounding to 8 bits."""
_FIRST_VALUES = 8
"""Values of an example that `every` compares first. Cost: time; nearly all pairs of different examples end
there, and the answer is the same for any."""


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


@dataclass(frozen=True, kw_only=True)
class ExactRule:
    """When two examples are the same: no value is off by more than `tolerance` times `unit`.

    `unit` is one number, or one per value (e.g. per column of a table) that broadcasts over an example.
    `whole` (bool, likewise) marks values that count things or name a category: they must be equal after
    rounding, whatever the tolerance. Token ids must be equal at every position.

    >>> rule = ExactRule(unit=torch.tensor([1.0, 15000.0]), whole=torch.tensor([True, False]))
    >>> truth = torch.tensor([[41.0, 32156.0], [44.0, 32168.0]])
    >>> rule.pairs(truth + torch.tensor([0.4, 12.0]), truth)  # rounding brings 41.4 back, 12 is within 15
    tensor([True, True])
    >>> rule.every(truth, truth)
    tensor([[ True, False],
            [False,  True]])
    """

    unit: float | Tensor = 1.0
    whole: Tensor | None = None
    tolerance: float = EXACT_TOLERANCE

    def __post_init__(self) -> None:
        check_tolerance(self.tolerance)
        check_unit(self.unit)

    def values(self, recon: Tensor, truth: Tensor) -> Tensor:
        """(n, ...) bool: which values of n matched pairs are right.

        >>> ExactRule().values(torch.tensor([[0.5, 0.6]]), torch.tensor([[0.5, 0.5]]))
        tensor([[ True, False]])
        """
        check_pair(recon, truth)
        if are_tokens(truth):
            return recon == truth
        same = self._same(recon.detach().flatten(1), truth.detach().flatten(1), *self._flat(truth))
        return same.reshape(truth.shape)

    def pairs(self, recon: Tensor, truth: Tensor) -> Tensor:
        """(n,) bool: which of n matched pairs are the same example."""
        check_pair(recon, truth)
        if are_tokens(truth):
            return (recon == truth).flatten(1).all(1)
        unit, whole = self._flat(truth)
        return by_examples(
            lambda r, t: self._same(r.flatten(1), t.flatten(1), unit, whole).all(1), recon, truth
        ).bool()

    def every(self, candidates: Tensor, truth: Tensor) -> Tensor:
        """(k, n) bool: for all k candidates and n true examples, whether they are the same.

        A pair is given up at the first values that differ, so that pictures cost little more than their first
        few pixels (in a fixed random order: borders are alike). Memory is bounded in every direction.
        """
        check_comparable(candidates, truth)
        k, n = len(candidates), len(truth)
        found = torch.zeros(k, n, dtype=torch.bool, device=truth.device)
        if k == 0 or n == 0:
            return found
        guesses, examples = candidates.detach().flatten(1), truth.detach().flatten(1)
        unit, whole = self._flat(truth)
        length = examples.shape[1]
        order = torch.randperm(length, generator=torch.Generator().manual_seed(0)).to(truth.device)
        for rows in torch.arange(k, device=truth.device).split(max(1, BLOCK // (_FIRST_VALUES * n))):
            pairs = torch.cartesian_prod(rows, torch.arange(n, device=truth.device))  # (rows * n, 2)
            start, width = 0, _FIRST_VALUES
            while start < length and len(pairs):
                some = order[start : start + width]
                same = [
                    self._same(guesses[p[:, :1], some], examples[p[:, 1:], some], unit[some], whole[some])
                    for p in pairs.split(max(1, BLOCK // width))
                ]
                pairs = pairs[torch.cat([part.all(1) for part in same])]
                start, width = start + width, 2 * width
            found[pairs[:, 0], pairs[:, 1]] = True
        return found

    def _flat(self, truth: Tensor) -> tuple[Tensor, Tensor]:
        """Unit and `whole` of each of an example's values, (d,)."""
        shape = truth.shape[1:]
        unit = wide(torch.as_tensor(self.unit).to(truth.device)).expand(shape).flatten()
        whole = torch.zeros((), dtype=torch.bool) if self.whole is None else self.whole
        return unit, whole.to(truth.device).expand(shape).flatten()

    def _same(self, recon: Tensor, truth: Tensor, unit: Tensor, whole: Tensor) -> Tensor:
        """(m, d) bool, value by value."""
        if are_tokens(truth):
            return recon == truth
        recon, truth = wide(recon), wide(truth)
        near = (recon - truth).abs() / unit <= self.tolerance
        return torch.where(whole, recon.round() == truth.round(), near) if bool(whole.any()) else near


def exact_match(
    recon: Tensor, truth: Tensor, *, tolerance: float = EXACT_TOLERANCE, data_range: float | Tensor = 1.0
) -> Tensor:
    """(n,) bool: `ExactRule.pairs` for values that are measured, none of them counted.

    >>> exact_match(torch.tensor([[0.5, 0.5], [0.5, 0.6]]), torch.full((2, 2), 0.5))
    tensor([ True, False])
    """
    return ExactRule(unit=data_range, tolerance=tolerance).pairs(recon, truth)
