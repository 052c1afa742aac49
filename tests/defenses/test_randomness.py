"""Noise from the system's generator has the distribution, and nobody can draw it again."""

from __future__ import annotations

import torch
from scipy import stats

from seepage.core.types import Update, UpdateKind
from seepage.defenses.gaussian_noise import gaussian_noise
from seepage.defenses.randomness import SystemGenerator, noise_source, standard_normal


def test_the_systems_normals_are_normal_and_independent() -> None:
    """A Kolmogorov-Smirnov test that a right generator fails once in a million runs."""
    drawn = SystemGenerator().normal((300, 200))
    assert drawn.dtype == torch.float64
    assert stats.kstest(drawn.flatten().numpy(), "norm").pvalue > 1e-6
    assert abs(torch.corrcoef(drawn[:2])[0, 1]) < 0.5
    assert not torch.equal(drawn, SystemGenerator().normal((300, 200)))
    assert SystemGenerator().normal((0, 3)).shape == (0, 3)


def test_a_seed_comes_first_and_the_type_follows() -> None:
    one, two = (standard_normal((4,), torch.float32, noise_source(7, cryptographic=True)) for _ in range(2))
    assert torch.equal(one, two)
    wild = standard_normal((4,), torch.float16, noise_source(None, cryptographic=True))
    assert wild.dtype == torch.float16


def test_the_option_reaches_the_noise(monkeypatch) -> None:
    drawn = []

    def ones(_: SystemGenerator, shape: torch.Size) -> torch.Tensor:
        drawn.append(shape)
        return torch.ones(shape)

    monkeypatch.setattr(SystemGenerator, "normal", ones)
    sent = Update(kind=UpdateKind.GRADIENT, tensors={"w": torch.zeros(2, 3)})
    noisy = gaussian_noise(sigma=0.5, cryptographic=True)(None, None, lambda *_: sent)
    assert drawn == [torch.Size([2, 3])] and torch.equal(noisy.tensors["w"], torch.full((2, 3), 0.5))
