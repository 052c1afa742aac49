"""OASIS: training on every image together with transformed copies of it, so that readings are mixtures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from seepage.core.errors import DataError
from seepage.core.registry import unknown
from seepage.core.types import Batch, Broadcast, Defense, LocalStep, Update

MINOR_DEGREES = 20.0
"""Angle of the minor rotation. No plateau test yet."""
SHEAR = 0.5
"""Shift of a row of pixels for each row that it lies off the centre. No plateau test yet."""


def _affine(images: Tensor, matrix: Sequence[Sequence[float]]) -> Tensor:
    """Sample each image at matrix * (x, y), in pixels from its centre; what lies outside is zero."""
    height, width = images.shape[-2:]
    (a, b), (c, d) = matrix
    # affine_grid measures each axis in its own half-lengths
    scaled = [[a, b * height / width], [c * width / height, d]]
    rows = torch.tensor(scaled, dtype=images.dtype, device=images.device)
    theta = torch.cat([rows, rows.new_zeros(2, 1)], dim=1).expand(len(images), 2, 3)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="zeros", align_corners=False)


def _turn(images: Tensor) -> Tensor:
    cos, sin = math.cos(math.radians(MINOR_DEGREES)), math.sin(math.radians(MINOR_DEGREES))
    return _affine(images, [[cos, -sin], [sin, cos]])


TRANSFORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "rotate90": lambda images: images.rot90(1, (-2, -1)),
    "rotate180": lambda images: images.rot90(2, (-2, -1)),
    "rotate270": lambda images: images.rot90(3, (-2, -1)),
    "rotate_minor": _turn,
    "shear": lambda images: _affine(images, [[1.0, SHEAR], [0.0, 1.0]]),
    "flip_horizontal": lambda images: images.flip(-1),
    "flip_vertical": lambda images: images.flip(-2),
}
"""(n, c, h, w) to the same shape. rotate90 and rotate270 need square images."""


def oasis(*, transforms: Sequence[str] = ("rotate90", "rotate180", "rotate270")) -> Defense:
    """Client: add transformed copies of every image to the batch (OASIS, Jeter et al. 2024).

    A copy tends to activate the neurons its original does, so that no row holds the original alone. Copies
    stand next to their original, so that they share a local mini-batch. The client still reports the number
    of its own examples. Audits refuse it around `dp_sgd`, where copies would multiply an example's influence
    behind the accountant's back.
    """
    if isinstance(transforms, str) or not transforms:
        raise ValueError("transforms must be a list of at least one name, such as ['rotate90']")
    for name in transforms:
        if name not in TRANSFORMS:
            raise ValueError(unknown("transform", name, TRANSFORMS).rstrip("."))

    def augment(broadcast: Broadcast, batch: Batch, next_step: LocalStep) -> Update:
        update = next_step(broadcast, with_copies(batch, transforms))
        return replace(update, num_examples=len(batch))

    return augment


def with_copies(batch: Batch, transforms: Sequence[str]) -> Batch:
    """Every image, followed by its copies.

    >>> batch = Batch(torch.rand(2, 1, 4, 4), torch.tensor([7, 3]))
    >>> with_copies(batch, ["flip_vertical"]).labels.tolist()
    [7, 7, 3, 3]
    """
    images = batch.inputs
    if images.dim() != 4 or not images.is_floating_point():
        raise DataError(
            f"OASIS transforms images (n, c, h, w), not inputs of shape {tuple(images.shape)}: "
            "choose another defense for text and tables."
        )
    copies = [TRANSFORMS[name](images) for name in transforms]
    if any(copy.shape != images.shape for copy in copies):
        raise DataError(
            f"a quarter turn of {images.shape[2]} x {images.shape[3]} images does not fit the model: "
            "use rotate180, flips or shear."
        )
    together = torch.stack([images, *copies], dim=1).flatten(0, 1)
    return Batch(together, batch.labels.repeat_interleave(len(copies) + 1))
