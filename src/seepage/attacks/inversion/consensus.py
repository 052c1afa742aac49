"""Restarts that agree are more likely right: a penalty on the distance to what all of them show.

GradInversion (Yin et al. 2021, eq. 11): convolutions hardly care where in the image something is, so restarts
show the same thing at different places, and their plain mean is a blur. The paper registers images by
RANSAC-flow, a trained network; here they are registered by whole-pixel shifts, found by phase correlation
(Kuglin & Hines 1975) of the restarts with one another.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.attacks.inversion.objective import Prior
from seepage.attacks.inversion.priors import PriorFactory
from seepage.attacks.inversion.problem import Problem
from seepage.core.types import Modality

LARGEST_SHIFT = 1 / 4
"""Share of a side beyond which two images have too little in common to be compared. Tested:
test_constants_of_the_consensus_lie_on_a_plateau."""
LESS = 0.8
"""Share of the squared difference that a shift must not exceed: chance peaks of noise save nothing. Tested:
test_constants_of_the_consensus_lie_on_a_plateau."""
FINEST = 0.15
"""Cycles per pixel up to about which phases are trusted. Tested:
test_constants_of_the_consensus_lie_on_a_plateau."""
CLEAR = 6.0
"""Height of a peak, in deviations of the correlation of unrelated images, from which on it is believed.
Derived: a normal value exceeds 6 once in 1e9, and an image has at most 1e5 shifts."""


def shifts_between(fixed: Tensor, moving: Tensor) -> Tensor:
    """(..., C, H, W) twice to (..., 2): rows and columns that `moving` must be shifted by to lie on `fixed`.

    0, 0 where no shift stands out: images of noise have nothing to be aligned by.

    >>> image = torch.zeros(1, 32, 32)
    >>> image[:, 10:18, 12:15] = 1.0
    >>> shifts_between(image, image.roll((2, -3), dims=(-2, -1))).tolist()
    [-2, 3]
    """
    height, width = fixed.shape[-2:]
    # faded out at the border, where shifted images differ
    fade = _fade(height, fixed)[:, None] * _fade(width, fixed)
    spectra = [
        torch.fft.rfft2((image - image.mean(dim=(-2, -1), keepdim=True)) * fade) for image in (fixed, moving)
    ]
    cross = (spectra[0] * spectra[1].conj()).sum(dim=-3)  # (..., H, W / 2 + 1), channels agree on a shift
    phase = cross / cross.abs().clamp_min(torch.finfo(fixed.dtype).tiny)
    rows, columns = (_signed(size, fixed.device) for size in (height, width))
    trust = _trust(rows / height, columns / width)  # (H, W)
    surface = torch.fft.irfft2(trust[:, : phase.shape[-1]] * phase, s=(height, width))
    far = (rows.abs() > LARGEST_SHIFT * height)[:, None] | (columns.abs() > LARGEST_SHIFT * width)
    peak, place = surface.masked_fill(far, -torch.inf).flatten(-2).max(dim=-1)
    found = torch.stack([rows[place // width], columns[place % width]], dim=-1)
    # phases of unrelated images are random, so that each value is about normal with this deviation
    deviation = trust.square().sum().sqrt() / (height * width)
    return torch.where((peak > CLEAR * deviation)[..., None], found, 0)


def _fade(size: int, like: Tensor) -> Tensor:
    return torch.hann_window(size + 2, periodic=False, dtype=like.dtype, device=like.device)[1:-1]


def _trust(down: Tensor, right: Tensor) -> Tensor:
    """Of frequencies, in cycles per pixel: the fine ones of a candidate are mostly noise."""
    return torch.exp(-(down.square()[:, None] + right.square()) / (2 * FINEST**2))


def _signed(size: int, device: torch.device) -> Tensor:
    """0, 1, ..., -2, -1: what places of a periodic correlation mean."""
    places = torch.arange(size, device=device)
    return torch.where(places > size // 2, places - size, places)


def shifted(images: Tensor, shifts: Tensor, fill: Tensor) -> Tensor:
    """(n, C, H, W) images, each by its own (n, 2) shift; what comes in from outside is taken from `fill`.

    >>> shifted(torch.arange(4.0).view(1, 1, 1, 4), torch.tensor([[0, 1]]), torch.full((1, 1, 1, 4), 9.0))
    tensor([[[[9., 0., 1., 2.]]]])
    """
    height, width = images.shape[-2:]
    rows = torch.arange(height, device=images.device) - shifts[:, :1]  # (n, H): where each row comes from
    columns = torch.arange(width, device=images.device) - shifts[:, 1:]
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    example = torch.arange(len(images), device=images.device)[:, None, None]
    moved = images.movedim(1, -1)[example, rows[:, :, None] % height, columns[:, None, :] % width]
    return torch.where(inside[:, None], moved.movedim(-1, 1), fill)


def aligned(own: Tensor, other: Tensor) -> Tensor:
    """(n, C, H, W) twice: `other` where it lies on `own`, or as it is where no shift makes it more alike."""
    shifts = shifts_between(own, other)
    moved = shifted(other, shifts, own)
    sides = torch.tensor(own.shape[-2:], device=own.device)
    overlap = ((sides - shifts.abs()) / sides).prod(dim=-1)  # (n,): outside of it `moved` is `own` itself
    before, after = ((image - own).flatten(1).square().mean(1) for image in (other, moved))
    return torch.where((after < LESS * overlap * before)[:, None, None, None], moved, other)


def registered_consensus(images: Tensor) -> Tensor:
    """(R, n, C, H, W) to the mean over all restarts, in the place where each of them has it.

    Seen from a restart, the others come to it: it keeps its own place, which the update has a say in.
    """
    means = []
    for r, own in enumerate(images):
        arrived = [own if s == r else aligned(own, other) for s, other in enumerate(images)]
        means.append(torch.stack(arrived).mean(dim=0))
    return torch.stack(means)


def distance_to_consensus(inputs: Tensor, consensus: Tensor) -> Tensor:
    """Mean squared distance of each restart to a consensus held fixed: (R, n, *shape) to (R,)."""
    return (inputs - consensus.detach()).flatten(1).square().mean(1)


def group_consistency(weight: float) -> PriorFactory:
    """Restarts that agree are more likely right. Says nothing about a single one."""

    def build(problem: Problem) -> Prior | None:
        if weight == 0:
            return None
        image = problem.spec.modality is Modality.IMAGE

        def penalty(inputs: Tensor) -> Tensor:
            with torch.no_grad():
                agreed = registered_consensus(inputs) if image else inputs.mean(dim=0, keepdim=True)
            return weight * distance_to_consensus(inputs / problem.unit, agreed / problem.unit)

        return penalty

    return build
