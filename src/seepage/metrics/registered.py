"""Registered PSNR (Wen et al. 2022, Appendix B; Yin et al. 2021): PSNR after a picture was moved into place.

An inverted picture is often right but shifted by a few pixels, which PSNR punishes like noise. It is
registered on the truth by kornia's direct optimisation, coarse to fine. Costly (about a second a picture), so
it is computed where it is asked for and not in every audit.
"""

from __future__ import annotations

import importlib
import math
from typing import Literal

import torch
from torch import Tensor

from seepage.core.errors import DataError, NotApplicable
from seepage.metrics.exact import check_unit
from seepage.metrics.extras import extras_available
from seepage.metrics.image import psnr
from seepage.metrics.pairs import by_examples, check_pair

Motion = Literal["translation", "similarity", "homography"]

SHORTEST_SIDE = 8
"""Derived: one level of the pyramid; below it there is no place to move a picture to."""
_COARSEST_SIDE = 8
"""Side of the coarsest level of the pyramid. A choice: smaller levels show too little to be moved by, and one
more level changes the time."""


def registered_psnr_available() -> tuple[bool, str]:
    """Whether registered PSNR can be computed here, and why not."""
    return extras_available("Registered PSNR", {"kornia": "kornia"})


def registered_psnr(
    recon: Tensor,
    truth: Tensor,
    *,
    data_range: float,
    motion: Motion = "homography",
    iterations: int = 100,
    lr: float = 1e-3,
) -> Tensor:
    """(n,): the better of PSNR and PSNR after registration of pictures (n, C, H, W) or (n, H, W), in dB.

    motion: how a picture may be moved: shifted; shifted, turned and scaled (kornia counts a turn in degrees,
    so that steps of this size hardly turn it); or by any homography, which undoes turns as well.
    iterations, lr: most Adam steps at each level of the pyramid, and their size in half picture widths.

    All pixels count, so that zooming into one spot does not pay. What moves in from beyond the border is the
    repeated border; kornia's own filling, black, costs more than ten dB for one pixel of shift. Interpolation
    smooths, which brings even pure noise 1 to 3 dB: score a baseline in the same way. Raises NotApplicable
    where `registered_psnr_available` says no.
    """
    check_unit(data_range)
    check_pair(recon, truth)
    if truth.ndim == 3:
        recon, truth = recon.unsqueeze(1), truth.unsqueeze(1)
    if truth.ndim != 4 or min(truth.shape[-2:]) < SHORTEST_SIDE:
        raise DataError(
            f"registered PSNR compares pictures of at least {SHORTEST_SIDE} x {SHORTEST_SIDE} pixels, got "
            f"examples of shape {tuple(truth.shape[1:])}: use PSNR for those."
        )
    if iterations < 1 or not (lr > 0 and math.isfinite(lr)):
        raise DataError(
            f"registration cannot run with iterations = {iterations} and lr = {lr}: both must be positive."
        )
    available, reason = registered_psnr_available()
    if not available:
        raise NotApplicable(reason)

    def score(r: Tensor, t: Tensor) -> Tensor:
        plain = psnr(r, t, data_range=data_range)
        # one by one: kornia finds one motion for a whole batch
        moved = torch.cat(
            [
                _register(one / data_range, other / data_range, motion, iterations, lr)
                for one, other in zip(r.split(1), t.split(1), strict=True)
            ]
        )
        found = moved.flatten(1).isfinite().all(dim=1)
        moved = torch.where(found.reshape(-1, 1, 1, 1), moved, r / data_range)
        return torch.maximum(plain, psnr(moved, t / data_range, data_range=1.0))

    return by_examples(score, recon, truth)


def _register(recon: Tensor, truth: Tensor, motion: Motion, iterations: int, lr: float) -> Tensor:
    """(1, C, H, W): the reconstruction moved onto the truth; as it was where no motion was found."""
    try:
        geometry = importlib.import_module("kornia.geometry")
    except ImportError as error:
        raise NotApplicable(f"registered PSNR needs kornia, which cannot be imported ({error}).") from None
    levels = 1 + int(math.log2(min(truth.shape[-2:]) / _COARSEST_SIDE))
    registrator = geometry.ImageRegistrator(
        motion, num_iterations=iterations, lr=lr, pyramid_levels=levels, tolerance=1e-6
    ).to(truth)
    try:
        with torch.enable_grad():
            matrix = registrator.register(recon, truth).detach()
    except RuntimeError as error:
        if "singular" not in str(error):
            raise
        return recon  # the motion went to a matrix without inverse
    size = (truth.shape[-2], truth.shape[-1])
    moved: Tensor = geometry.homography_warp(recon, matrix, size, padding_mode="border")
    return moved
