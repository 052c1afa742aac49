"""Estimates of a feature's spread against scipy and against known populations."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from seepage.attacks.fishing.features import (
    FEATURE_CHOICES,
    cut_at_mass,
    estimate_features,
    ks_statistic,
)
from seepage.core.errors import NotApplicable


def clients(counts: torch.Tensor, *, mean: float, std: float, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    drawn = [mean + std * torch.randn(int(s), generator=generator, dtype=torch.float64) for s in counts]
    return torch.stack([values.mean() for values in drawn]).unsqueeze(1)


def test_unequal_class_counts_give_the_spread_of_single_examples() -> None:
    """The paper's formula gives 1.73 times the variance for s = 1..8; ours is right."""
    counts = torch.arange(1, 9).repeat(500)
    found = estimate_features(clients(counts, mean=5.0, std=2.0, seed=0), counts.double())
    assert found.mean.item() == pytest.approx(5.0, abs=0.05)
    assert found.std.item() == pytest.approx(2.0, rel=0.03)
    assert found.images == 4.5


def test_equal_counts_of_one_are_the_sample_mean_and_deviation() -> None:
    values = torch.randn(50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = estimate_features(values, torch.ones(50))
    assert torch.allclose(found.mean, values.mean(dim=0)) and torch.allclose(found.std, values.std(dim=0))


def test_ks_statistic_is_scipys() -> None:
    generator = torch.Generator().manual_seed(2)
    columns = torch.stack(
        [torch.randn(80, generator=generator), torch.rand(80, generator=generator), torch.zeros(80)], dim=1
    ).double()
    expected = [stats.kstest(column.numpy(), "norm").statistic for column in columns.T]
    assert torch.allclose(ks_statistic(columns), torch.tensor(expected, dtype=torch.float64))


def test_choices_pick_what_their_names_say() -> None:
    generator = torch.Generator().manual_seed(3)
    normal = 3 + torch.randn(200, generator=generator)
    mostly_zero = (torch.rand(200, generator=generator) > 0.9).float() * 9
    high = 50 + torch.rand(200, generator=generator)
    wide = 20 * torch.rand(200, generator=generator)
    found = estimate_features(torch.stack([normal, mostly_zero, high, wide], dim=1), torch.ones(200))
    picked = {name: choose(found, generator) for name, choose in FEATURE_CHOICES.items()}
    assert 0 <= picked.pop("random") < 4
    assert picked == {
        "ks": 0,
        "highest_ks": 1,
        "lowest_mean": 1,
        "highest_mean": 2,
        "lowest_std": 2,
        "highest_std": 3,
    }


def test_the_cut_leaves_the_wanted_mass_below() -> None:
    found = estimate_features(torch.tensor([[1.0], [3.0]]), torch.ones(2))
    for mass in (0.1, 0.25, 0.5):
        expected = stats.norm(2.0, math.sqrt(2.0)).ppf(mass)
        assert cut_at_mass(found, 0, mass) == pytest.approx(expected, rel=1e-6)
    assert cut_at_mass(found, 0, 1.0) == math.inf
    with pytest.raises(NotApplicable, match="fewer than two"):
        estimate_features(torch.zeros(1, 2), torch.ones(1))
