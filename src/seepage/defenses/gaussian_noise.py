"""Independent noise on every coordinate of an update."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from seepage.types import Batch, Broadcast, Defense, LocalStep, Update


def gaussian_noise(*, sigma: float = 0.01, seed: int = 0) -> Defense:
    """Client: add N(0, sigma^2) to every coordinate. Without clipping it gives no differential privacy.

    Put `clipping` inside it (after it in the list) to bound what the noise has to hide.
    """
    if not 0 <= sigma < math.inf:
        raise ValueError(f"sigma must be zero or positive and finite, not {sigma}")
    generator = torch.Generator().manual_seed(seed)

    def add_noise(broadcast: Broadcast, batch: Batch, next_step: LocalStep) -> Update:
        update = next_step(broadcast, batch)
        noisy = {
            name: t + sigma * torch.randn(t.shape, generator=generator, dtype=t.dtype).to(t.device)
            for name, t in update.tensors.items()
        }
        return replace(update, tensors=noisy)

    return add_noise
