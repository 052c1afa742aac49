"""The search for pictures with given features: closed forms, descent, and constants on a plateau."""

from __future__ import annotations

import pytest
import torch
from tests.attacks.reading.patterns.test_by_alphabet import pictures
from tests.plateaus import scaled
from torch import Tensor, nn

from seepage.attacks.features import gauss_newton
from seepage.attacks.features.gauss_newton import approach, conjugate_gradients
from seepage.attacks.features.spectrum import Spectrum
from seepage.attacks.reading.unmixing.starts import smooth_fields

SHAPE = (1, 12, 12)


def test_conjugate_gradients_solve_several_systems_at_once() -> None:
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(3, 5, 5, dtype=torch.float64, generator=generator)
    matrices = root @ root.mT + torch.eye(5)
    right = torch.randn(3, 5, dtype=torch.float64, generator=generator)
    found = conjugate_gradients(lambda v: (matrices @ v.unsqueeze(2)).squeeze(2), right, iterations=5)
    assert torch.allclose(found, torch.linalg.solve(matrices, right))


def test_a_linear_front_gives_the_ridge_regression(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step with all iterations: min |M A z - (h - M c)|^2 / |h|^2 + w |z|^2 has a closed form."""
    monkeypatch.setattr(gauss_newton, "INNER", 400)
    generator = torch.Generator().manual_seed(1)
    matrix = torch.randn(20, 144, dtype=torch.float64, generator=generator)
    h = torch.randn(2, 20, dtype=torch.float64, generator=generator)
    here = Spectrum.of(SHAPE, centre=0.5, unit=0.25, like=h)
    *_, last = approach(lambda x: x.flatten(1) @ matrix.T, h, here, SHAPE, steps=1)
    basis = here.change(torch.eye(144, dtype=torch.float64).reshape(144, *SHAPE)).flatten(1).T  # A: (144, z)
    for k in range(2):
        seen = matrix @ basis
        ridge = gauss_newton.FIRST_WEIGHT * h[k].square().sum() * torch.eye(144, dtype=torch.float64)
        z = torch.linalg.solve(seen.T @ seen + ridge, seen.T @ (h[k] - matrix.sum(1) * 0.5))
        assert torch.allclose(last.pictures[k].flatten(), 0.5 + basis @ z, atol=1e-6)


def front(channels: int = 1) -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(6, 12, 3, stride=1 if channels == 1 else 2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
    )


def decibels(steps: int = 40) -> Tensor:
    """Of twelve coloured pictures with the power of natural ones, 1/f^2, behind strided convolutions."""
    shape = (3, 12, 12)
    model = front(3)
    drawn = (0.5 + 0.2 * smooth_fields(12, shape, torch.Generator().manual_seed(2))).clamp(0, 1)
    features = model(drawn).detach()
    here = Spectrum.of(shape, centre=0.5, unit=0.25, like=features)
    *_, last = approach(model, features, here, shape, steps)
    off = last.pictures.clamp(0, 1) - drawn
    return -10 * torch.log10(off.square().flatten(1).mean(1))


def test_every_step_fits_better_or_stands_still_and_the_pictures_are_near() -> None:
    model, batch = front(), pictures(4, seed=2)
    features = model(batch.inputs).detach()
    here = Spectrum.of(SHAPE, centre=0.5, unit=0.25, like=features)
    standings = list(approach(model, features, here, SHAPE, 10))
    assert len(standings) == 11
    assert float(standings[-1].off.max()) < 0.1 * float(standings[0].off.min())
    assert float(decibels().mean()) > float(decibels(steps=2).mean()) + 1


def test_a_front_that_passes_nothing_on_leaves_the_picture_grey() -> None:
    here = Spectrum.of(SHAPE, centre=0.5, unit=0.25, like=torch.zeros(1))
    *_, last = approach(lambda x: 0 * x.flatten(1)[:, :3] + 1, torch.rand(2, 3), here, SHAPE, 2)
    assert torch.allclose(last.pictures, torch.full((2, *SHAPE), 0.5))


@pytest.mark.parametrize(
    "constant",
    [
        "gauss_newton:FIRST_WEIGHT",
        "gauss_newton:LAST_WEIGHT",
        "gauss_newton:INNER",
        "spectrum:CHROMA",
    ],
)
@pytest.mark.parametrize("factor", [0.8, 1.25])
def test_constants_of_the_search_for_pictures_lie_on_a_plateau(constant: str, factor: float) -> None:
    usual = float(decibels().mean())
    with scaled(f"seepage.attacks.features.{constant}", factor):
        assert float(decibels().mean()) == pytest.approx(usual, abs=1.0)
