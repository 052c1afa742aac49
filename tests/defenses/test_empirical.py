"""Empirical epsilon: the Gaussian mechanism's is known, a broken one is contradicted, an honest one not."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from seepage.core.types import Batch, Broadcast, LocalTraining
from seepage.defenses import noise_multiplier
from seepage.defenses.dp_sgd import dp_sgd
from seepage.defenses.empirical import empirical_epsilon, from_cosines
from seepage.protocol import client

SIZE = 20_000


def gaussian(sigma: float, seed: int):
    generator = torch.Generator().manual_seed(seed)

    def release(given: Tensor) -> Tensor:
        clipped = given / given.norm(dim=1, keepdim=True).clamp(min=1.0)
        return clipped.sum(dim=0) + sigma * torch.randn(given.shape[1], generator=generator)

    return release


def by_dp_sgd(sigma: float, seed: int):
    """The defense as it is shipped: a linear model without weights yet has gradients along its inputs."""

    def release(given: Tensor) -> Tensor:
        model = nn.Sequential(nn.Flatten(), nn.Linear(given.shape[1], 1, bias=False))
        nn.init.zeros_(model[1].weight)
        batch = Batch(given, torch.zeros(len(given), dtype=torch.int64))
        sent = client(LocalTraining(), [dp_sgd(clip=1.0, sigma=sigma, seed=seed)])(Broadcast(model), batch)
        return sent.tensors["1.weight"].flatten()

    return release


@pytest.mark.parametrize("made", [gaussian, by_dp_sgd])
@pytest.mark.parametrize("claimed", [3.0, 8.0])
def test_the_gaussian_mechanism_within_a_fifth(made, claimed) -> None:
    sigma = noise_multiplier(epsilon=claimed)
    found = [empirical_epsilon(made(sigma, seed), size=SIZE, canaries=500, seed=seed) for seed in (0, 1)]
    assert sum(one.estimate for one in found) / 2 == pytest.approx(claimed, rel=0.2)
    assert all(0 <= one.at_least < claimed and not one.contradicts(claimed) for one in found)


@pytest.mark.parametrize("made", [gaussian, by_dp_sgd])
def test_noise_for_a_sensitivity_that_is_not_the_clipping_norm_is_contradicted(made) -> None:
    sigma = 1e-4 * noise_multiplier(epsilon=3.0)
    found = empirical_epsilon(made(sigma, 0), size=SIZE, canaries=500)
    assert found.contradicts(3.0) and found.at_least > 3.0
    assert "contradicts the claim of ε = 3" in found.words(3.0)


def test_a_mechanism_that_does_not_clip_is_contradicted() -> None:
    def unclipped(given: Tensor) -> Tensor:
        return given.sum(dim=0) + torch.randn(SIZE, generator=torch.Generator().manual_seed(0))

    assert empirical_epsilon(unclipped, size=SIZE, canaries=100).contradicts(10.0)


def test_what_shows_nothing_bounds_nothing() -> None:
    generator = torch.Generator().manual_seed(3)
    absent = torch.randn(1000, generator=generator) / math.sqrt(SIZE)
    found = from_cosines(absent, size=SIZE)
    assert found.at_least < 0.5 and found.estimate < 0.5
    assert from_cosines(-absent.abs(), size=SIZE).at_least == 0.0


def test_the_bound_is_wrong_in_no_more_runs_than_it_says() -> None:
    """200 runs, the cosines drawn as they are in the limit of many dimensions: at most 5 % above epsilon."""
    claimed = 1.0
    apart = 1 / noise_multiplier(epsilon=claimed)
    generator = torch.Generator().manual_seed(9)
    wrong = sum(
        from_cosines((apart + torch.randn(300, generator=generator)) / SIZE**0.5, size=SIZE).contradicts(
            claimed
        )
        for _ in range(200)
    )
    assert wrong <= 18  # of 10 expected at the most; the chance of more than 18 is below 1 %


def test_too_many_canaries_are_refused() -> None:
    with pytest.raises(ValueError, match="fewer than numbers"):
        empirical_epsilon(gaussian(1.0, 0), size=50, canaries=50)
