"""Where a defense's noise comes from."""

from __future__ import annotations

import secrets

import torch


def noise_generator(seed: int | None) -> torch.Generator:
    """Noise that nobody else can draw: seeded by the system's entropy, 64 bits of it.

    With a default seed two clients would send the same noise, and their difference would hold none. An audit
    gives a seed of its own, made from the private data as well (`engine.seeds`), so that it can be repeated.

    >>> first, second = (torch.randn(4, generator=noise_generator(None)) for _ in range(2))
    >>> bool((first == second).any())
    False
    """
    return torch.Generator().manual_seed(secrets.randbits(64) if seed is None else seed)
