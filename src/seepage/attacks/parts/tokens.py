"""From embeddings back to tokens, for text models whose first dense layer reads flattened embeddings."""

from __future__ import annotations

import torch
from torch import Tensor


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
