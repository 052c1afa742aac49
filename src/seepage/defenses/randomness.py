"""Where a defense's noise comes from."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

_SUMMED = 4
"""Normals behind each one. Paper: Holohan and Braghin 2021, Section 5.2."""
_AT_ONCE = 2**20
"""Normals drawn at a time. Cost: 32 MB of random bytes."""


class SystemGenerator:
    """Normals from the operating system's cryptographic generator.

    A float has few low bits, and those of one normal can tell what it was added to (Mironov 2012). The sum of
    four of them, halved, has the same distribution and no such pattern that anyone can search for (Holohan
    and Braghin 2021, Section 5.2), as Opacus' secure mode has it.

    >>> drawn = SystemGenerator().normal((1000, 10))
    >>> drawn.shape, bool(abs(drawn.std() - 1) < 0.1)
    (torch.Size([1000, 10]), True)
    """

    def normal(self, shape: Sequence[int]) -> Tensor:
        count = int(np.prod(shape, dtype=np.int64))
        parts = [self._some(min(_AT_ONCE, count - start)) for start in range(0, count, _AT_ONCE)]
        drawn = np.concatenate(parts) if parts else np.empty(0)
        return torch.from_numpy(drawn).reshape(tuple(shape))

    def _some(self, count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        words = np.frombuffer(os.urandom(8 * _SUMMED * count), dtype=np.uint64)
        inside = ((words >> np.uint64(11)).astype(np.float64) + 0.5) / 2**53  # never 0 or 1
        normals: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = ndtri(inside).reshape(_SUMMED, count)
        return np.asarray(normals.sum(axis=0) / 2)


NoiseSource = torch.Generator | SystemGenerator


def noise_source(seed: int | None, *, cryptographic: bool = False) -> NoiseSource:
    """The system's cryptographic generator where it is wanted; a seed, which a simulation gives, comes first.

    >>> isinstance(noise_source(None, cryptographic=True), SystemGenerator)
    True
    >>> isinstance(noise_source(3, cryptographic=True), torch.Generator)
    True
    """
    return SystemGenerator() if cryptographic and seed is None else noise_generator(seed)


def noise_generator(seed: int | None) -> torch.Generator:
    """Noise that nobody else can draw: seeded by the system's entropy, 64 bits of it.

    With a default seed two clients would send the same noise, and their difference would hold none. An audit
    gives a seed of its own, made from the private data as well (`engine.seeds`), so that it can be repeated.

    >>> first, second = (torch.randn(4, generator=noise_generator(None)) for _ in range(2))
    >>> bool((first == second).any())
    False
    """
    return torch.Generator().manual_seed(secrets.randbits(64) if seed is None else seed)


def standard_normal(shape: Sequence[int], dtype: torch.dtype, source: NoiseSource) -> Tensor:
    """Independent N(0, 1), on the CPU."""
    if isinstance(source, SystemGenerator):
        return source.normal(shape).to(dtype)
    return torch.randn(tuple(shape), generator=source, dtype=dtype)
