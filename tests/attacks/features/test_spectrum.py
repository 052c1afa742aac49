"""The belief about pictures: its coordinates, against scipy's cosine transform."""

from __future__ import annotations

import pytest
import scipy.fft
import torch

from seepage.attacks.features.spectrum import CHROMA, Spectrum


def spectrum(shape: tuple[int, ...]) -> Spectrum:
    return Spectrum.of(shape, centre=0.5, unit=0.25, like=torch.zeros(1, dtype=torch.float64))


def test_a_grey_picture_is_the_inverse_cosine_transform_of_its_coordinates() -> None:
    z = torch.randn(2, 1, 6, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    here = spectrum((1, 6, 9))
    expected = scipy.fft.idctn((here.amplitude * z).numpy(), axes=(2, 3), norm="ortho")
    assert torch.allclose(here.picture(z), 0.5 + torch.from_numpy(expected))


def test_the_adjoint_is_one() -> None:
    here = spectrum((3, 5, 7))
    a, b = torch.randn(2, 4, 3, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert float((here.change(a) * b).sum()) == pytest.approx(float((a * here.adjoint(b)).sum()))


def test_colours_are_smaller_than_brightness_and_low_frequencies_larger_than_high_ones() -> None:
    here = spectrum((3, 8, 8))
    generator = torch.Generator().manual_seed(2)
    drawn = here.change(torch.randn(4000, 3, 8, 8, dtype=torch.float64, generator=generator))
    brightness = drawn.sum(1) / 3**0.5
    opponent = (drawn[:, 0] - drawn[:, 1]) / 2**0.5
    assert float(opponent.std() / brightness.std()) == pytest.approx(CHROMA, rel=0.05)
    assert float(drawn.square().mean()) == pytest.approx(0.25**2, rel=0.1)
    assert bool((here.amplitude[0, 0] > here.amplitude.flatten()[1:]).all())
