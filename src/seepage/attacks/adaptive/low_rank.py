"""A dense layer's gradient has at most as many independent rows as there are examples: that undoes defenses.

[G_w | G_b] = sum_j d_j [x_j | 1]^T is a matrix of rank n. Noise, pruning and rounding break that; among all
matrices that the defense could have turned into what was sent, the one of rank n is looked for.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Project = Callable[[Tensor], Tensor]
"""A matrix to the nearest one that the defense could have turned into what was sent."""

MOST_ROUNDS = 120
"""Rounds of the alternation. Cost: four passes over the matrix each."""
ENTRIES_A_LAYER = 1e8
"""Matrix entries visited in one layer. Cost: large layers get fewer rounds, so that none takes minutes."""
SETTLED = 1e-7
"""Relative change at which the alternation has arrived. Derived: the rounding of float32."""


def complete(start: Tensor, rank: int, possible: Project, *, seed: int = 0) -> Tensor:
    """Alternate between rank `rank` and what is `possible`, from `start`; returns the low-rank matrix.

    The subspace is carried from round to round, so each costs four passes over the matrix and no full
    singular value decomposition.

    >>> u, v = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 4.0, 9.0, 2.0])
    >>> whole, seen = torch.outer(u, v), torch.ones(3, 4, dtype=torch.bool)
    >>> seen[0, 0] = seen[2, 3] = False
    >>> found = complete(whole * seen, 1, lambda z: torch.where(seen, whole, z))
    >>> torch.allclose(found, whole, atol=1e-3)
    True
    """
    generator = torch.Generator().manual_seed(seed)
    basis = torch.randn(start.shape[1], rank, generator=generator).to(start)
    current, low = start, start
    for _ in range(max(4, min(MOST_ROUNDS, int(ENTRIES_A_LAYER / max(1, start.numel()))))):
        left = torch.linalg.qr(current @ basis).Q  # (N, rank)
        basis = current.T @ left  # (m, rank)
        low = left @ basis.T
        moved = possible(low)
        change = float((moved - current).norm())
        current = moved
        if change <= SETTLED * float(current.norm()):
            break
    return low


def truncate(matrix: Tensor, rank: int, *, rounds: int = 6, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """The leading `rank` singular vectors and values (u, s, v) by subspace iteration."""
    generator = torch.Generator().manual_seed(seed)
    extra = min(rank + 8, *matrix.shape)
    basis = torch.randn(matrix.shape[1], extra, generator=generator).to(matrix)
    left = torch.linalg.qr(matrix @ basis).Q
    for _ in range(rounds):
        left = torch.linalg.qr(matrix @ torch.linalg.qr(matrix.T @ left).Q).Q
    small = left.T @ matrix  # (extra, m)
    u, s, vh = torch.linalg.svd(small, full_matrices=False)
    return (left @ u)[:, :rank], s[:rank], vh[:rank].T


def filter_noise(matrix: Tensor, rank: int, *, seed: int = 0) -> tuple[Tensor, float]:
    """The matrix of this rank under equal Gaussian noise, and the noise's standard deviation.

    sigma is read off what a matrix of this rank cannot explain. Each singular value is then shrunk by the
    rule that is optimal for the squared error (Gavish & Donoho 2017); those below the noise's edge vanish.

    >>> _ = torch.manual_seed(0)
    >>> clean = torch.outer(torch.randn(200), torch.rand(100))
    >>> found, sigma = filter_noise(clean + 0.3 * torch.randn(200, 100), 1)
    >>> round(sigma, 1), bool((found - clean).norm() < 0.2 * 0.3 * (200 * 100) ** 0.5)
    (0.3, True)
    """
    rows, columns = matrix.shape
    u, s, v = truncate(matrix, rank, seed=seed)
    left_over = float(matrix.square().sum() - s.square().sum())
    sigma = (max(left_over, 0.0) / ((rows - rank) * (columns - rank))) ** 0.5
    if sigma <= 0:
        return matrix, 0.0
    wide, beta = max(rows, columns), min(rows, columns) / max(rows, columns)
    y = (s / (sigma * wide**0.5)).double()
    inside = ((y.square() - beta - 1).square() - 4 * beta).clamp_min(0).sqrt() / y
    shrunk = torch.where(y > 1 + beta**0.5, inside, torch.zeros_like(y)) * sigma * wide**0.5
    return (u * shrunk.to(u)) @ v.T, sigma
