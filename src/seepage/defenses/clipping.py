"""Scaling a whole update down to a bounded norm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from seepage.core.types import Batch, Broadcast, Defense, LocalStep, Update


def clipping(*, norm: float = 1.0) -> Defense:
    """Client: scale the update so that its L2 norm is at most `norm`. Heuristic: exact data survive it.

    >>> from torch import nn
    >>> from seepage.protocol import client
    >>> from seepage.core.types import LocalTraining
    >>> step = client(LocalTraining(), [clipping(norm=0.1)])
    >>> sent = step(Broadcast(nn.Linear(3, 2)), Batch(torch.rand(4, 3), torch.tensor([0, 1, 1, 0])))
    >>> bool(torch.cat([t.flatten() for t in sent.tensors.values()]).norm() <= 0.1 + 1e-6)
    True
    """
    check_norm("norm", norm)

    def clip(broadcast: Broadcast, batch: Batch, next_step: LocalStep) -> Update:
        update = next_step(broadcast, batch)
        return replace(update, tensors=clip_together(update.tensors, norm))

    return clip


def clip_together(tensors: Mapping[str, Tensor], norm: float) -> dict[str, Tensor]:
    """All tensors times one factor, so that together their norm is at most `norm`."""
    total = torch.stack([t.norm() for t in tensors.values()]).norm()
    factor = (norm / total).clamp(max=1.0)
    return {name: t * factor for name, t in tensors.items()}


def check_norm(name: str, norm: float) -> None:
    """A bound must bound something."""
    if not norm > 0:
        raise ValueError(f"{name} must be positive, not {norm}")
