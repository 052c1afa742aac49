"""How near a reconstructed picture is: MSE, PSNR, SSIM, and LPIPS where its network is on disk."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import math
from pathlib import Path

import torch
from torch import Tensor, nn

from seepage.core.errors import DataError, NotApplicable
from seepage.core.metric import PSNR_CAP
from seepage.metrics.exact import check_unit
from seepage.metrics.pairs import by_examples, check_pair

SSIM_KERNEL = 11
"""Paper: Wang et al. 2004, Sec. III-C: 11 x 11, gaussian of sigma 1.5."""
_SSIM_COPIES = 16
"""Five products of the pictures, their means along one and both directions, and what is made of these. Cost:
memory."""

_LPIPS_BACKBONE = "alexnet-owt-7be5be79.pth"
_LPIPS_SHORTEST_SIDE = 31
"""Derived: below it nothing is left after AlexNet's second pooling."""


def mse(recon: Tensor, truth: Tensor) -> Tensor:
    """(n,): mean squared error of each example.

    >>> mse(torch.full((1, 1, 2, 2), 0.5), torch.zeros(1, 1, 2, 2)).tolist()
    [0.25]
    """
    return by_examples(lambda r, t: (r - t).flatten(1).square().mean(1), recon, truth)


def psnr(recon: Tensor, truth: Tensor, *, data_range: float) -> Tensor:
    """(n,): peak signal-to-noise ratio, 10 log10(data_range^2 / MSE) in dB, at most `PSNR_CAP`.

    >>> psnr(torch.full((1, 1, 2, 2), 0.1), torch.zeros(1, 1, 2, 2), data_range=1.0)
    tensor([20.0000], dtype=torch.float64)
    """
    check_unit(data_range)
    # in two logarithms, so that a tiny MSE or a large range cannot overflow
    return (20 * math.log10(data_range) - 10 * mse(recon, truth).log10()).clamp(max=PSNR_CAP)


def ssim_kernel(height: int, width: int) -> int:
    """Side of the SSIM window: 11, or the largest odd number that fits a smaller picture.

    >>> ssim_kernel(25, 25), ssim_kernel(8, 8), ssim_kernel(28, 5)
    (11, 7, 5)
    """
    shorter = min(height, width)
    return min(SSIM_KERNEL, shorter if shorter % 2 else shorter - 1)


def ssim(recon: Tensor, truth: Tensor, *, data_range: float) -> Tensor:
    """(n,): structural similarity (Wang et al. 2004) of pictures (n, C, H, W) or (n, H, W).

    As in the paper and in scikit-image, only windows that lie wholly inside the picture count, and
    channels are averaged. Where the
    11 x 11 window does not fit (8 x 8, say), the largest odd one that does is taken and its gaussian shrunk
    in proportion: such values compare with each other, not with those of larger pictures.

    >>> picture = torch.arange(64.0).reshape(1, 1, 8, 8) / 64
    >>> ssim(picture, picture, data_range=1.0).tolist()
    [1.0]
    """
    check_unit(data_range)
    check_pair(recon, truth)
    if truth.ndim == 3:
        recon, truth = recon.unsqueeze(1), truth.unsqueeze(1)
    if truth.ndim != 4 or min(truth.shape[-2:]) < 3:
        raise DataError(
            f"SSIM compares pictures of at least 3 x 3 pixels, got examples of shape "
            f"{tuple(truth.shape[1:])}: use PSNR for those."
        )
    window = gaussian_window(ssim_kernel(*truth.shape[-2:])).to(truth.device)
    # the constants of Wang et al. 2004, eq. (7), Sec. III-C: K1 = 0.01 and K2 = 0.03
    c1, c2 = (0.01 * data_range) ** 2, (0.03 * data_range) ** 2

    def score(r: Tensor, t: Tensor) -> Tensor:
        maps = torch.stack([r, t, r * r, t * t, r * t]).flatten(0, 2)  # (5 n C, H, W)
        r_mean, t_mean, r_square, t_square, product = _windowed(maps, window).reshape(
            5, len(r), -1
        )  # (n, C h w) each
        both = r_mean * t_mean
        squares = r_mean.square() + t_mean.square()
        spread = r_square + t_square - squares
        # Rounding may leave a variance below 0 or a covariance above the mean one. Bounded by it, equal
        # pictures have a similarity of 1 and none has more.
        shared = (2 * (product - both)).clamp(-spread, spread)
        similarity: Tensor = (2 * both + c1) * (shared + c2) / ((squares + c1) * (spread + c2))
        return similarity.mean(1)  # eq. (13), (17)

    return by_examples(score, recon, truth, copies=_SSIM_COPIES)


def gaussian_window(size: int) -> Tensor:
    """(size,) gaussian weights that sum to 1; sigma is 1.5 for 11, and in proportion.

    >>> gaussian_window(3)
    tensor([0.0038, 0.9923, 0.0038], dtype=torch.float64)
    """
    inset = size // 2
    place = torch.arange(-inset, inset + 1, dtype=torch.float64)
    weights = torch.exp(-0.5 * (place / (0.3 * inset)).square())
    return weights / weights.sum()


def _windowed(maps: Tensor, window: Tensor) -> Tensor:
    """(m, H, W) -> (m, h, w): weighted means over every window inside the picture, along rows, then columns.

    The window is a product of two, so 2 x 11 products do where 11 x 11 would.
    """
    weights = window.to(maps)
    rows = nn.functional.conv2d(maps.unsqueeze(1), weights.reshape(1, 1, 1, -1))
    return nn.functional.conv2d(rows, weights.reshape(1, 1, -1, 1)).squeeze(1)


def lpips_available() -> tuple[bool, str]:
    """Whether LPIPS can be computed here, and why not: it needs two packages and AlexNet's weights on disk.

    Nothing is downloaded, and a network of random weights is never put in its place.
    """
    for package in ("torchvision", "torchmetrics"):
        if importlib.util.find_spec(package) is None:
            return False, f"LPIPS needs {package}, which is not installed."
    if not _backbone().is_file():
        return False, (
            f"LPIPS needs AlexNet's weights on disk ({_LPIPS_BACKBONE} in torch's hub cache), and they "
            "are not there; seepage does not download them."
        )
    try:
        importlib.import_module("torchvision")
    except (
        ImportError,
        RuntimeError,
        OSError,
        AttributeError,
    ) as error:  # a build that does not fit this torch
        return False, f"LPIPS needs torchvision, which is installed but cannot be imported ({error})."
    return True, ""


def lpips(recon: Tensor, truth: Tensor, *, value_range: tuple[float, float]) -> Tensor:
    """(n,): learned perceptual distance (Zhang et al. 2018, AlexNet) of pictures with 1 or 3 channels.

    Values are clipped to `value_range`. Raises NotApplicable where `lpips_available` says no.
    """
    low, high = value_range
    check_unit(high - low, "the width of value_range")
    check_pair(recon, truth)
    if truth.ndim != 4 or truth.shape[1] not in (1, 3) or min(truth.shape[-2:]) < _LPIPS_SHORTEST_SIDE:
        raise DataError(
            f"LPIPS compares pictures of 1 or 3 channels and at least {_LPIPS_SHORTEST_SIDE} pixels a side, "
            f"got examples of shape {tuple(truth.shape[1:])}: use SSIM for those."
        )
    available, reason = lpips_available()
    if not available:
        raise NotApplicable(reason)
    _check_backbone(_backbone())
    from torchmetrics.functional.image.lpips import learned_perceptual_image_patch_similarity

    def score(r: Tensor, t: Tensor) -> Tensor:
        r, t = (((x - low) / (high - low)).clamp(0, 1).float().expand(-1, 3, -1, -1) for x in (r, t))
        distance: Tensor = learned_perceptual_image_patch_similarity(r, t, reduction="none", normalize=True)
        return distance.reshape(-1)

    return by_examples(score, recon, truth)


def _backbone() -> Path:
    return Path(torch.hub.get_dir()) / "checkpoints" / _LPIPS_BACKBONE


def _check_backbone(path: Path) -> None:
    # torchvision unpickles this file without checking it; its name carries the published file's hash
    expected = path.stem.rpartition("-")[2]
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if not found.startswith(expected):
        raise DataError(f"{path.name} is damaged or not the published file: delete it and fetch it again.")
