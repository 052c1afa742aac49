"""Canaries in DP-SGD: the epsilon they show against the closed form, and noise that breaks its promise."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from seepage.core.types import Batch, Broadcast, LocalTraining
from seepage.defenses import Deployment, epsilon
from seepage.defenses.canaries import Canaries
from seepage.defenses.dp_sgd import dp_sgd
from seepage.defenses.empirical import Empirical, from_parts
from seepage.defenses.entry import Schedule
from seepage.protocol import client

WIDE = nn.Sequential(nn.Flatten(), nn.Linear(64, 500), nn.ReLU(), nn.Linear(500, 4))
SIZE = sum(p.numel() for p in WIDE.parameters())


def audited(sigma: float, *, rounds: int = 1, turns: int = 1, count: int = 1000) -> Empirical:
    torch.manual_seed(0)
    schedule = Schedule(rounds=rounds, turns=turns, batch_size=4)
    canaries = Canaries(count, SIZE, schedule=schedule, seed=3)
    around = Deployment(schedule=schedule, canaries=canaries)
    step = client(LocalTraining(), [dp_sgd(clip=0.5, sigma=sigma, seed=11, deployment=around)])
    batch = Batch(torch.rand(4, 64), torch.randint(4, (4,)))
    for _ in range(rounds):
        step(Broadcast(WIDE), batch)
    return from_parts(canaries.seen, canaries.directions)


@pytest.mark.parametrize(("sigma", "rounds", "turns"), [(0.5, 1, 1), (1.0, 1, 1), (2.0, 1, 1), (2.0, 8, 2)])
def test_the_estimate_is_within_a_fifth_of_the_closed_form(sigma: float, rounds: int, turns: int) -> None:
    found = audited(sigma, rounds=rounds, turns=turns)
    true = epsilon(sigma=sigma, steps=rounds // turns)
    assert found.estimate == pytest.approx(true, rel=0.2)
    assert found.at_least <= true and not found.contradicts(true)


@pytest.mark.parametrize(("sigma", "rate", "rounds"), [(0.8, 0.04, 200), (1.3, 0.04, 200), (2.0, 0.2, 40)])
def test_under_poisson_sampling_the_estimate_is_the_accountants(
    sigma: float, rate: float, rounds: int
) -> None:
    """The sum of the releases, read as one Gaussian, shows half of it at a sigma of .8."""
    pytest.importorskip("dp_accounting")
    true = epsilon(sigma=sigma, steps=rounds, sampling_rate=rate)
    canaries = Canaries(1000, SIZE, schedule=Schedule(rounds=rounds, sampling_rate=rate), seed=3)
    nothing, generator = {"all": torch.zeros(SIZE)}, torch.Generator().manual_seed(5)
    for _ in range(rounds):
        joined = canaries.join(nothing, 0.5)["all"]
        noise = sigma * 0.5 * torch.randn(SIZE, generator=generator)
        canaries.look({"all": joined + noise}, nothing)
    steps, chance = canaries.sampled
    found = from_parts(canaries.seen, canaries.directions, steps=steps, sampling_rate=chance)
    assert found.estimate == pytest.approx(true, rel=0.2)
    assert found.low < true < found.high and not found.contradicts(true)
    as_one = from_parts(canaries.seen, canaries.directions)
    assert as_one.estimate < found.estimate


def test_noise_for_another_sensitivity_is_contradicted() -> None:
    """Noise that fits a sensitivity of 1e-2, where the clipping norm is 1."""
    claimed = epsilon(sigma=1.0)
    assert audited(1e-2).contradicts(claimed) and not audited(1.0).contradicts(claimed)


def test_canaries_that_are_not_there_show_nothing() -> None:
    directions = Canaries(500, 8000, schedule=Schedule(), seed=1).directions
    noise = torch.randn(500, 16, generator=torch.Generator().manual_seed(2))
    found = from_parts(noise, directions)
    assert found.at_least == 0.0 and found.low == 0.0 and found.high < 0.6


def test_a_canary_is_clipped_as_an_example_and_leaves_the_others_alone() -> None:
    schedule = Schedule(rounds=2, turns=2)
    canaries = Canaries(10, 100, schedule=schedule, seed=0)
    sums = {"a": torch.full((30,), 2.0), "b": torch.full((7, 10), -1.0)}
    for turn in range(2):
        joined = canaries.join(sums, 0.25)
        planted = torch.cat([(joined[name] - sums[name]).flatten() for name in sums]).view(10, 10)
        expected = [0.25 if turn == 0 else 0.0] * 10  # they are in the first batch
        assert planted.norm(dim=1).tolist() == pytest.approx(expected, abs=1e-6)


def test_a_poisson_round_draws_canaries_at_its_rate() -> None:
    canaries = Canaries(1000, 10_000, schedule=Schedule(sampling_rate=0.1), seed=0)
    drawn = [
        int((canaries.join({"a": torch.zeros(10_000)}, 1.0)["a"].view(1000, 10).norm(dim=1) > 0.5).sum())
        for _ in range(20)
    ]
    assert abs(sum(drawn) / 20 - 100) < 5 * (90 / 20) ** 0.5 and len(set(drawn)) > 1


def test_too_many_canaries_are_refused() -> None:
    with pytest.raises(ValueError, match="at most one for every"):
        Canaries(100, 500, schedule=Schedule(), seed=0)
