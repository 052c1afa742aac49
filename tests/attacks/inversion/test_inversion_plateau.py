"""Constants of inversion that no derivation gives: somewhat smaller or larger, restarts agree as well.

Photographs, shifts and noise of seeds that had no part in choosing them.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
from tests.plateaus import scaled
from torch import Tensor

from seepage.attacks.inversion.consensus import registered_consensus

from .test_consensus import photographs, window

RESTARTS, SEEDS, NOISE = 4, (97_001, 97_002, 97_003), 0.1
CONSTANTS = {"LARGEST_SHIFT": (0.8, 1.5), "LESS": (0.75, 1.15), "FINEST": (0.75, 2.0)}
WORSE = 1.1
"""Largest error in the place of the shipped one: chance decides about single shifts."""


@cache
def restarts() -> tuple[Tensor, Tensor]:
    """(R, n, C, 32, 32): what restarts show of n photographs, each moved by up to 6 pixels, without noise and
    with it."""
    true, seen = [], []
    for seed in SEEDS:
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(len(photographs()), generator=generator)[:6]
        moves = torch.randint(-6, 7, (RESTARTS, len(chosen), 2), generator=generator).tolist()
        shown = torch.stack(
            [
                torch.stack([window(photographs()[p], *m) for p, m in zip(chosen, row, strict=True)])
                for row in moves
            ]
        )
        true.append(shown)
        seen.append(shown + NOISE * torch.randn(shown.shape, generator=generator, dtype=shown.dtype))
    return torch.cat(true, dim=1), torch.cat(seen, dim=1)


def error() -> float:
    """Of the consensus, against what each restart shows without its noise."""
    true, seen = restarts()
    return float((registered_consensus(seen) - true).square().mean())


def test_a_consensus_of_moved_photographs_is_better_than_one_restart_and_than_their_mean() -> None:
    true, seen = restarts()
    plain = float((seen.mean(0, keepdim=True) - true).square().mean())
    assert error() < 0.9 * plain < 0.9 * NOISE**2


@pytest.mark.parametrize("constant", CONSTANTS)
def test_constants_of_the_consensus_lie_on_a_plateau(constant: str) -> None:
    shipped = error()
    for factor in CONSTANTS[constant]:
        with scaled(f"seepage.attacks.inversion.consensus:{constant}", factor):
            assert error() < WORSE * shipped, factor
