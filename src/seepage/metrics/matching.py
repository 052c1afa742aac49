"""Which candidate belongs to which true example.

An attack returns its candidates in no particular order and in any number. Scores are taken after an optimal
one-to-one assignment, so that one good candidate is not counted for two victims: first as many exact pairs as
there can be, then the least total error (`assignment`).

Floats are compared by mean squared error. Integers (and bools) are taken for token ids, whose differences
mean nothing, and are compared by the fraction of positions that differ (Hamming distance); turn uint8
pictures into floats first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.core.errors import DataError
from seepage.metrics.assignment import best_pairs
from seepage.metrics.pairs import BLOCK, are_tokens, check_comparable, wide

_HUGE = 1e300
"""Stands for a squared distance that overflows. Derived: a hundred million of them still have a finite sum in
float64."""


@dataclass(frozen=True)
class Assignment:
    """The candidate of each of n true examples.

    `candidate` (n,) int64: index of the candidate, or -1 for a true example that got none.
    `mse` (n,): mean squared error of each pair (for token ids: fraction of differing positions); infinity,
    never NaN, where there is no candidate, so that `mse < limit` is right everywhere.
    """

    candidate: Tensor
    mse: Tensor

    @property
    def matched(self) -> Tensor:
        """(n,) bool: the true examples that got a candidate."""
        return self.candidate >= 0


def assign(candidates: Tensor, truth: Tensor, *, exact: Tensor | None = None) -> Assignment:
    """The best one-to-one assignment of k candidates (k, ...) to n true examples (n, ...).

    exact (k, n) bool: which pairs are the same example; as many of them as possible are made before the total
    MSE is minimised. k may be 0, below n (some true examples get none) or above n (some candidates stay
    unused). A diverged candidate gets what the others leave.

    >>> found = assign(torch.tensor([[5.0], [1.0]]), torch.tensor([[1.0], [3.0], [5.5]]))
    >>> found.candidate.tolist(), found.mse.tolist()
    ([1, -1, 0], [0.0, inf, 0.25])
    """
    candidates, truth = _flat(candidates, truth)
    if exact is not None and exact.shape != (len(candidates), len(truth)):
        raise DataError(
            f"exact has shape {tuple(exact.shape)} for {len(candidates)} candidates and {len(truth)} true "
            "examples: give one entry for each pair."
        )
    matched = torch.full((len(truth),), -1, device=truth.device)
    errors = torch.full_like(wide(matched), torch.inf)
    if len(candidates):
        rows, columns = best_pairs(
            wide(pair_errors(candidates, truth).cpu()).numpy(),
            exact=None if exact is None else exact.cpu().numpy(),
        )
        used, found = (torch.as_tensor(part, device=truth.device) for part in (rows, columns))
        matched[found] = used
        errors[found] = _paired(_mean_error, candidates, truth, used, found)
    return Assignment(matched, errors)


def nearest_truth(candidates: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """For each candidate the nearest true example (k,), by L2, and the largest absolute error to it (k,).

    Many candidates may share one true example. For token ids: nearest by Hamming distance, and an error of 0
    for the very same sequence, 1 for any other.

    >>> nearest_truth(torch.tensor([[0.0, 1.0], [4.0, 4.0]]), torch.tensor([[0.0, 0.75], [4.0, 5.0]]))
    (tensor([0, 1]), tensor([0.2500, 1.0000], dtype=torch.float64))
    """
    candidates, truth = _flat(candidates, truth)
    every = torch.arange(len(candidates), device=truth.device)
    if not len(candidates):
        return every, wide(truth.new_zeros(0))
    index = pair_errors(candidates, truth).argmin(1)
    return index, _paired(_largest_error, candidates, truth, every, index)


def _flat(candidates: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    if len(truth) == 0:
        raise DataError("there are no true examples to match candidates with: give at least one.")
    check_comparable(candidates, truth)
    return candidates.detach().flatten(1), truth.detach().flatten(1)


def pair_errors(candidates: Tensor, truth: Tensor) -> Tensor:
    """(k, n): squared L2 distance of floats, fraction of differing positions of token ids.

    >>> pair_errors(torch.tensor([[1.0], [3.0]]), torch.tensor([[1.0]])).tolist()
    [[0.0], [4.0]]
    """
    candidates, truth = _flat(candidates, truth)
    return (hamming_distances if are_tokens(truth) else squared_distances)(candidates, truth)


def hamming_distances(candidates: Tensor, truth: Tensor) -> Tensor:
    """Fraction of positions that differ, for every pair of (k, d) and (n, d) token ids -> (k, n).

    >>> hamming_distances(torch.tensor([[1, 2, 3, 4]]), torch.tensor([[1, 2, 3, 4], [1, 2, 4, 3]]))
    tensor([[0.0000, 0.5000]], dtype=torch.float64)
    """
    rows = max(1, BLOCK // truth.numel())
    # (rows, 1, d) against (n, d) -> (rows, n, d): bounded by BLOCK
    parts = [wide(part[:, None] != truth).mean(2) for part in candidates.split(rows)]
    return torch.cat(parts)


def squared_distances(candidates: Tensor, truth: Tensor) -> Tensor:
    """Squared L2 distance of every pair of (k, d) and (n, d) values -> (k, n), in memory bounded in d.

    |c - t|^2 = |c|^2 + |t|^2 - 2 c.t is one matrix product, but loses the digits of small distances. So the
    data are centred first, and the pairs that still lie close are computed again from their difference:
    exact copies come out at exactly 0.

    >>> squared_distances(torch.tensor([[1e6, 1.0]]), torch.tensor([[1e6, 1.0], [1e6, 1.5]]))
    tensor([[0.0000, 0.2500]], dtype=torch.float64)
    """
    k, n = len(candidates), len(truth)
    product = wide(truth.new_zeros(k, n))
    candidate_norm, truth_norm = product.new_zeros(k), product.new_zeros(n)
    width = max(1, BLOCK // (k + n))
    for some_candidates, some_truth in zip(candidates.split(width, 1), truth.split(width, 1), strict=True):
        t = wide(some_truth)
        centre = t.mean(0)
        t = t - centre  # (n, width)
        c = wide(some_candidates) - centre  # (k, width)
        product.addmm_(c, t.T)
        candidate_norm += c.square().sum(1)
        truth_norm += t.square().sum(1)
    norms = candidate_norm[:, None] + truth_norm
    distances = norms - 2 * product
    # the rounding error is about eps * norms: below the cube root of eps it would cost a third of the digits
    close = distances <= norms * torch.finfo(norms.dtype).eps ** (1 / 3)
    first, second = close.nonzero(as_tuple=True)
    if len(first):
        distances[first, second] = _paired(_squared_error, candidates, truth, first, second)
    return distances.nan_to_num(nan=_HUGE).clamp(max=_HUGE)


def _paired(
    error: Callable[[Tensor, Tensor], Tensor],
    candidates: Tensor,
    truth: Tensor,
    first: Tensor,
    second: Tensor,
) -> Tensor:
    """`error` of candidates[first[i]] against truth[second[i]] for every i, straight from the values."""
    rows = max(1, BLOCK // truth.shape[1])
    parts = torch.stack([first, second]).split(rows, 1)
    return torch.cat([error(candidates[some], truth[others]) for some, others in parts])


def _difference(candidates: Tensor, truth: Tensor) -> Tensor:
    # 0 or 1 for token ids, whose differences mean nothing
    return wide(candidates != truth) if are_tokens(truth) else wide(candidates) - wide(truth)


def _squared_error(candidates: Tensor, truth: Tensor) -> Tensor:
    return _difference(candidates, truth).square().sum(1)


def _mean_error(candidates: Tensor, truth: Tensor) -> Tensor:
    return _difference(candidates, truth).square().mean(1)


def _largest_error(candidates: Tensor, truth: Tensor) -> Tensor:
    return _difference(candidates, truth).abs().amax(1)
