"""Complex-wavelet SSIM against its formula written out, and on shifted copies."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from seepage.core.errors import DataError, NotApplicable
from seepage.metrics import METRICS, cw_ssim, cw_ssim_available, ssim, wavelet_scales

REASON = "complex-wavelet SSIM needs the extra 'wen' (pytorch-wavelets, PyWavelets, setuptools<81)"


@pytest.fixture
def wavelets() -> Any:
    pytest.importorskip("pywt", reason=REASON)
    pytest.importorskip("pkg_resources", reason=REASON)
    return pytest.importorskip("pytorch_wavelets", reason=REASON)


def shifted(size: int, right: int) -> tuple[Tensor, Tensor]:
    """Two windows of one smooth picture, `right` pixels apart."""
    generator = torch.Generator().manual_seed(3)
    coarse = torch.rand(2, 1, size // 4 + 2, size // 4 + 2, generator=generator, dtype=torch.float64)
    whole = functional.interpolate(coarse, size=(size + 8, size + 8), mode="bicubic", align_corners=True)
    return whole[..., 4 : 4 + size, 4 + right : 4 + right + size], whole[..., 4 : 4 + size, 4 : 4 + size]


@pytest.mark.parametrize("size", [8, 20, 32])
def test_it_is_the_formula_written_out(wavelets: Any, size: int) -> None:
    """Wang & Simoncelli 2005, eq. (4), window by window with numpy's complex numbers."""
    recon, truth = torch.rand(1, 2, size, size).double(), torch.rand(1, 2, size, size).double()
    scales = wavelet_scales(size, size)
    forward = wavelets.DTCWTForward(J=scales, biort="near_sym_b", qshift="qshift_b").double()
    by_scale = []
    for x, y in zip(forward(recon)[1], forward(truth)[1], strict=True):
        a, b = (np.asarray(v[..., 0]) + 1j * np.asarray(v[..., 1]) for v in (x[0], y[0]))
        side = min(7, a.shape[-1])
        floor = 2 * side**2 * (0.5 / 255) ** 2
        scores = []
        for channel, orientation in np.ndindex(2, 6):
            for i, j in np.ndindex(a.shape[-2] - side + 1, a.shape[-1] - side + 1):
                p = a[channel, orientation, i : i + side, j : j + side]
                q = b[channel, orientation, i : i + side, j : j + side]
                energy = (abs(p) ** 2).sum() + (abs(q) ** 2).sum()
                scores.append((2 * abs((p * q.conj()).sum()) + floor) / (energy + floor))
        by_scale.append(np.mean(scores))
    assert cw_ssim(recon, truth, data_range=1.0).item() == pytest.approx(np.mean(by_scale), abs=1e-9)


def test_a_small_shift_costs_little_where_ssim_falls(wavelets: Any) -> None:
    recon, truth = shifted(64, 1)
    assert cw_ssim(recon, truth, data_range=1.0).min() > 0.93
    recon, truth = shifted(64, 2)
    assert cw_ssim(recon, truth, data_range=1.0).min() > 0.83
    assert ssim(recon, truth, data_range=1.0).max() < 0.65


def test_a_copy_is_one_and_noise_is_low(wavelets: Any) -> None:
    _, truth = shifted(32, 0)
    assert cw_ssim(truth, truth, data_range=1.0).tolist() == pytest.approx([1.0, 1.0])
    assert cw_ssim(torch.rand_like(truth), truth, data_range=1.0).max() < 0.2
    assert cw_ssim(truth.flip(0), truth, data_range=1.0).max() < 0.5  # another picture of the same kind


def test_brightness_and_units_do_not_count(wavelets: Any) -> None:
    recon, truth = shifted(16, 1)
    right = cw_ssim(recon, truth, data_range=1.0)
    torch.testing.assert_close(cw_ssim(recon + 0.3, truth, data_range=1.0), right, rtol=0, atol=1e-3)
    torch.testing.assert_close(cw_ssim(recon * 255, truth * 255, data_range=255.0), right)
    torch.testing.assert_close(cw_ssim(recon[:, 0], truth[:, 0], data_range=1.0), right)
    assert cw_ssim(recon.float(), truth.float(), data_range=1.0).dtype == torch.float64


@pytest.mark.parametrize(("side", "scales"), [(256, 5), (128, 5), (127, 4), (64, 4), (32, 3), (8, 1), (7, 0)])
def test_small_pictures_have_fewer_scales(side: int, scales: int) -> None:
    assert wavelet_scales(side, 300) == scales == wavelet_scales(300, side)


def test_it_says_why_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert METRICS["cw_ssim"].needs == "the wen extra"
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if "p" in name else real(name))
    available, reason = cw_ssim_available()
    assert not available
    assert "pytorch-wavelets and PyWavelets and setuptools<81, which are not installed" in reason
    with pytest.raises(NotApplicable, match="not installed"):
        cw_ssim(torch.rand(1, 1, 8, 8), torch.rand(1, 1, 8, 8), data_range=1.0)


@pytest.mark.parametrize("shape", [(1, 1, 7, 30), (1, 64), (1, 2, 3, 8, 8)])
def test_what_has_no_scale_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match="at least 8 pixels a side"):
        cw_ssim(torch.rand(shape), torch.rand(shape), data_range=1.0)
