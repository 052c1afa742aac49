"""From embeddings back to tokens, for text models whose first dense layer reads flattened embeddings."""

from __future__ import annotations

import torch
from torch import Tensor

_MIXING = (1.0, 2.0**0.5, 3.0**0.5, 5.0**0.5)
"""A row's hash is this combination of its first components. Derived: over the rational numbers, roots of
different primes are independent, so that different rows lie apart."""
EXACT_LOOK_UP = 1e-5
"""Distance, relative to a typical row, below which the row that was looked up is the one that was read.
Derived: a quotient of float32 numbers is off by about 1e-7, and rows of a vocabulary lie about a typical row
apart."""
NOT_FOUND = -1
"""Derived: no token has it."""


def tokens_of(embeddings: Tensor, table: Tensor, *, nearest: bool = True) -> tuple[Tensor, Tensor]:
    """(k, length, dim) embeddings to (k, length) ids, and how far each is from that row of `table`.

    Look-up by hash first (Boenisch et al. 2021, Section 8), which needs no comparison with every row of
    the vocabulary; the nearest neighbour for texts with a position that noise or mixing carried away from
    every row. A hash of the bytes would miss: quotients of gradients are rounded in the last bits, so the
    hash is a number and its neighbours on both sides are tried. Without `nearest`, the id of what is no row
    of the table is NOT_FOUND.

    >>> table = torch.rand(50, 6, generator=torch.Generator().manual_seed(0))
    >>> ids, distance = tokens_of(table[[7, 3]].unsqueeze(0) * (1 + 1e-7), table)
    >>> ids.tolist(), bool(distance.max() < 1e-5)
    ([[7, 3]], True)
    """
    ids, distance = hashed_tokens(embeddings, table)
    if not nearest:
        return ids.masked_fill(distance > EXACT_LOOK_UP, NOT_FOUND), distance
    missed = (distance > EXACT_LOOK_UP).any(dim=1)
    if missed.any():
        ids[missed], _ = nearest_tokens(embeddings[missed], table)
        distance[missed] = _relative_distance(embeddings[missed], table, ids[missed])
    return ids, distance


def _relative_distance(embeddings: Tensor, table: Tensor, ids: Tensor) -> Tensor:
    """(k, length), relative to a typical row (a padding row may be zero); one text at a time."""
    distance = torch.empty(ids.shape, dtype=embeddings.dtype, device=embeddings.device)
    for row, (text, chosen) in enumerate(zip(embeddings, ids, strict=True)):
        distance[row] = (text - table[chosen]).norm(dim=1)
    typical: Tensor = table.norm(dim=1).median().clamp_min(1e-12)
    return distance / typical


def hashed_tokens(embeddings: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """(k, length) ids: the nearest of four rows whose hashes lie around; and its relative distance.

    >>> ids, distance = hashed_tokens(torch.tensor([[[0.0, 1.0]]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    >>> ids.item(), distance.item()
    (1, 0.0)
    """
    mixing = torch.tensor(_MIXING[: table.shape[1]], dtype=torch.float64, device=table.device)
    keys, order = (table[:, : len(mixing)].double() @ mixing).sort()
    wanted = embeddings[..., : len(mixing)].double() @ mixing  # (k, length)
    after = torch.searchsorted(keys, wanted)
    # By the rows themselves, not by the hash: some of 10,000 hashes differ by no more than rounding does.
    near = [order[(after + step).clamp(0, len(keys) - 1)] for step in (-2, -1, 0, 1)]
    ids, distance = near[0], _relative_distance(embeddings, table, near[0])
    for other in near[1:]:
        its = _relative_distance(embeddings, table, other)
        ids, distance = torch.where(its < distance, other, ids), torch.minimum(its, distance)
    return ids, distance


def nearest_tokens(embeddings: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """(k, length, dim) embeddings to (k, length) ids of the nearest rows of `table` (vocabulary, dim).

    Also returns the distance to that row relative to the row's norm, (k, length): near 0 for an embedding
    that was read exactly, large for a mixture.

    >>> table = torch.eye(3)
    >>> ids, distance = nearest_tokens(table[[2, 0]].unsqueeze(0), table)
    >>> ids.tolist(), distance.max().item()
    ([[2, 0]], 0.0)
    """
    k, length = embeddings.shape[:2]
    half_norms = table.pow(2).sum(dim=1) / 2
    ids = torch.empty(k, length, dtype=torch.long, device=embeddings.device)
    for row in range(k):  # one text at a time: (length, vocabulary) scores, not (k * length, vocabulary)
        # argmin |e - t|^2 = argmax e.t - |t|^2 / 2
        ids[row] = (embeddings[row] @ table.T - half_norms).argmax(dim=1)
    chosen = table[ids]  # (k, length, dim)
    distance = (embeddings - chosen).norm(dim=2) / chosen.norm(dim=2).clamp_min(1e-12)
    return ids, distance
