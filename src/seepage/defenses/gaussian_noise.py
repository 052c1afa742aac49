"""Independent noise on every coordinate of an update."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from seepage.core.types import Batch, Broadcast, Defense, LocalStep, Update
from seepage.defenses.randomness import NoiseSource, noise_source, standard_normal


def gaussian_noise(*, sigma: float = 0.01, cryptographic: bool = False, seed: int | None = None) -> Defense:
    """Client: add N(0, sigma^2) to every coordinate. Without clipping it gives no differential privacy.

    Put `clipping` inside it (after it in the list) to bound what the noise has to hide: with c = 1 these are
    the noise scales of Boenisch et al., Figure 4b. cryptographic: as in `dp_sgd`.
    """
    check_sigma(sigma)
    source = noise_source(seed, cryptographic=cryptographic)

    def noise(broadcast: Broadcast, batch: Batch, next_step: LocalStep) -> Update:
        update = next_step(broadcast, batch)
        return replace(update, tensors=add_noise(update.tensors, sigma, source))

    return noise


def add_noise(tensors: Mapping[str, Tensor], std: float, source: NoiseSource) -> dict[str, Tensor]:
    """Drawn on the CPU, so that one seed gives the same noise on every device."""
    return {
        name: t + std * standard_normal(t.shape, t.dtype, source).to(t.device) for name, t in tensors.items()
    }


def check_sigma(sigma: float) -> None:
    """Zero means no noise; anything that is not a finite scale is a mistake."""
    if not 0 <= sigma < math.inf:
        raise ValueError(f"sigma must be zero or positive and finite, not {sigma}")
