"""Sending only the largest entries of an update (gradient sparsification)."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from seepage.core.types import Batch, Broadcast, Defense, LocalStep, Update


def pruning(*, share: float = 0.9, scope: Literal["tensor", "update"] = "tensor") -> Defense:
    """Client: set the `share` of entries with the smallest magnitude to zero (Zhu et al. 2019, Section 5.2).

    scope: the largest entries are chosen in each tensor (as published), or over the whole update at once.
    """
    if not 0 <= share < 1:
        raise ValueError(f"share must be zero or more and below 1 (0.9 drops 90 %), not {share}")
    if scope not in ("tensor", "update"):
        raise ValueError(f"scope must be 'tensor' or 'update', not '{scope}'")

    def prune(broadcast: Broadcast, batch: Batch, next_step: LocalStep) -> Update:
        update = next_step(broadcast, batch)
        if scope == "tensor":
            return replace(update, tensors={name: keep_top(t, share) for name, t in update.tensors.items()})
        sizes = [t.numel() for t in update.tensors.values()]
        whole = keep_top(torch.cat([t.flatten() for t in update.tensors.values()]), share)
        parts = zip(update.tensors.items(), whole.split(sizes), strict=True)
        return replace(update, tensors={name: part.reshape(t.shape) for (name, t), part in parts})

    return prune


def keep_top(tensor: Tensor, share: float) -> Tensor:
    """Zeros but for the round((1 - share) n) entries of the largest magnitude, and at least one.

    >>> keep_top(torch.tensor([1.0, -4.0, 2.0, -3.0]), 0.5).tolist()
    [0.0, -4.0, 0.0, -3.0]
    """
    flat = tensor.flatten()
    if flat.numel() == 0:
        return tensor
    kept = max(1, round((1 - share) * flat.numel()))
    index = flat.abs().topk(kept, sorted=False).indices
    return torch.zeros_like(flat).scatter(0, index, flat[index]).reshape(tensor.shape)
