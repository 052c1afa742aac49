"""Complex-wavelet SSIM (Wang & Simoncelli 2005; Wen et al. 2022, Appendix B).

A small shift of a picture turns the phases of its complex wavelet coefficients, all alike within a window,
and hardly changes their magnitudes. A correlation in windows that ignores a common phase is therefore nearly
blind to small shifts, where SSIM is not. The transform is the dual-tree complex wavelet transform (Kingsbury
2001) of pytorch-wavelets.
"""

from __future__ import annotations

import importlib
import math
import warnings

from torch import Tensor, nn

from seepage.core.errors import DataError, NotApplicable
from seepage.metrics.exact import check_unit
from seepage.metrics.extras import extras_available
from seepage.metrics.pairs import by_examples, check_pair

SCALES = 5
"""Paper: Wen et al. 2022, Appendix B."""
WINDOW = 7
"""Paper: Wang & Simoncelli 2005, Section 3: 7 x 7 coefficients."""
_SMALLEST_BAND = 4
"""Bands of fewer coefficients a side are left out. A choice: with one coefficient a window holds no
structure, and with four it holds some."""
_HALF_STEP = 0.5 / 255
"""The constant K, for each coefficient of a window. Derived: coefficients below half an 8-bit step count as
equal."""


def cw_ssim_available() -> tuple[bool, str]:
    """Whether complex-wavelet SSIM can be computed here, and why not.

    pytorch-wavelets does not declare that it needs PyWavelets and pkg_resources, which setuptools 81 dropped.
    """
    modules = {
        "pytorch_wavelets": "pytorch-wavelets",
        "pywt": "PyWavelets",
        "pkg_resources": "setuptools<81",
    }
    return extras_available("Complex-wavelet SSIM", modules)


def wavelet_scales(height: int, width: int) -> int:
    """How many of the paper's 5 scales a picture has: each halves its bands, to 4 coefficients at least.

    >>> wavelet_scales(224, 224), wavelet_scales(64, 64), wavelet_scales(32, 32), wavelet_scales(8, 8)
    (5, 4, 3, 1)
    """
    return max(0, min(SCALES, int(math.log2(min(height, width) / _SMALLEST_BAND))))


def cw_ssim(recon: Tensor, truth: Tensor, *, data_range: float) -> Tensor:
    """(n,): complex-wavelet SSIM of pictures (n, C, H, W) or (n, H, W); 1 is a copy.

    The mean over scales, the six orientations, channels and windows of
    (2 |sum c_x c_y*| + K) / (sum |c_x|^2 + sum |c_y|^2 + K). Only band-pass coefficients enter, so brightness
    and what is coarser than the last scale count nothing: read it beside PSNR. Pictures below 128 pixels
    have fewer than 5 scales (`wavelet_scales`): values of different sizes do not compare. NotApplicable
    is raised where `cw_ssim_available` says no.
    """
    check_unit(data_range)
    check_pair(recon, truth)
    if truth.ndim == 3:
        recon, truth = recon.unsqueeze(1), truth.unsqueeze(1)
    scales = wavelet_scales(*truth.shape[-2:]) if truth.ndim == 4 else 0
    if scales < 1:
        raise DataError(
            f"complex-wavelet SSIM compares pictures of at least {2 * _SMALLEST_BAND} pixels a side, got "
            f"examples of shape {tuple(truth.shape[1:])}: use PSNR for those."
        )
    available, reason = cw_ssim_available()
    if not available:
        raise NotApplicable(reason)
    transform = _transform(scales)

    def score(r: Tensor, t: Tensor) -> Tensor:
        forward = transform.to(t)
        _, ours = forward(r / data_range)
        _, theirs = forward(t / data_range)
        by_scale = [_similarity(x, y) for x, y in zip(ours, theirs, strict=True)]
        total: Tensor = sum(by_scale[1:], by_scale[0])
        return total / len(by_scale)

    return by_examples(score, recon, truth)


def _transform(scales: int) -> nn.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that pkg_resources will go, in every process
            package = importlib.import_module("pytorch_wavelets")
    except ImportError as error:
        raise NotApplicable(
            f"complex-wavelet SSIM needs pytorch-wavelets, which cannot be imported ({error})."
        ) from None
    forward: nn.Module = package.DTCWTForward(J=scales, biort="near_sym_b", qshift="qshift_b")
    return forward


def _similarity(x: Tensor, y: Tensor) -> Tensor:
    """(n,): mean over one scale's windows; x and y are (n, C, 6, h, w, 2), real and imaginary parts last."""
    (a, b), (c, d) = x.unbind(-1), y.unbind(-1)
    # c_x times the conjugate of c_y
    real, imaginary = _window_sums(a * c + b * d), _window_sums(b * c - a * d)
    energy = _window_sums(a.square() + b.square() + c.square() + d.square())
    size = min(WINDOW, a.shape[-2]) * min(WINDOW, a.shape[-1])
    constant = 2 * size * _HALF_STEP**2
    similarity = (2 * (real.square() + imaginary.square()).sqrt() + constant) / (energy + constant)
    return similarity.flatten(1).mean(dim=1)


def _window_sums(band: Tensor) -> Tensor:
    """Sums over every window that lies inside the band (n, C, 6, h, w)."""
    size = (min(WINDOW, band.shape[-2]), min(WINDOW, band.shape[-1]))
    means = nn.functional.avg_pool2d(band.flatten(0, 2), size, stride=1)
    return means.reshape(*band.shape[:3], *means.shape[1:]) * (size[0] * size[1])
