"""What is believed of a picture before anything is known of it: smooth, and nearly grey.

A picture is written by coordinates z that are independent and equally large beforehand: x = centre + A z,
with A the cosines of all frequencies, each as large as natural pictures have it. |z|^2 is then minus twice
the logarithm of the (Gaussian) prior, and a search in z finds large shapes before small ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

FALL = 1.5
"""Amplitudes fall as 1 / (1 + f)^FALL, f in half waves over the picture: power as 1/f^3. Paper: natural
pictures have 1/f^2 to 1/f^3 (Field 1987; Tolhurst et al. 1992). Tried with 1, 1.5 and 2 on three batches of
CIFAR-10's test images below 3000: 1.5 lies at most .8 dB below the best of them, 1 up to 2.8 and 2 up to
4.5."""
CHROMA = 0.2
"""Deviation along an opponent colour over that of the brightness. Paper: Ruderman, Cronin and Chiao 1998,
.073 over .353 in natural scenes."""


@dataclass(frozen=True)
class Spectrum:
    """Pictures (k, C, H, W) by coordinates of the same shape, with a variance of unit^2 a pixel."""

    amplitude: Tensor
    """(H, W) of each pair of frequencies."""
    vertical: Tensor
    """(H, H) cosines, orthonormal rows."""
    horizontal: Tensor
    """(W, W)"""
    colours: Tensor
    """(C, C), symmetric: brightness as it is, differences of channels made smaller."""
    centre: float | Tensor

    @classmethod
    def of(cls, shape: tuple[int, ...], *, centre: float | Tensor, unit: float, like: Tensor) -> Spectrum:
        """centre: of all pictures, or (k, C, H, W) of each.

        >>> spectrum = Spectrum.of((3, 8, 6), centre=0.5, unit=0.25, like=torch.zeros(1))
        >>> drawn = spectrum.picture(torch.randn(400, 3, 8, 6, generator=torch.Generator().manual_seed(0)))
        >>> 0.23 < drawn.std().item() < 0.27
        True
        """
        channels, height, width = shape
        along = [torch.arange(size, dtype=like.dtype, device=like.device) for size in (height, width)]
        frequency = (along[0].square().unsqueeze(1) + along[1].square()).sqrt()
        amplitude = (1 + frequency) ** -FALL
        amplitude = unit * amplitude / amplitude.square().mean().sqrt()
        grey = torch.full((channels, channels), 1 / channels, dtype=like.dtype, device=like.device)
        colours = grey + CHROMA * (torch.eye(channels, dtype=like.dtype, device=like.device) - grey)
        colours = colours / colours.square().sum(1).mean().sqrt()
        return cls(amplitude, _cosines(along[0]), _cosines(along[1]), colours, centre)

    def picture(self, z: Tensor) -> Tensor:
        """centre + A z."""
        return self.centre + self.change(z)

    def change(self, z: Tensor) -> Tensor:
        """A z: (k, C, H, W)."""
        waves = self.vertical.T @ (self.amplitude * z) @ self.horizontal
        return torch.einsum("cd,kdhw->kchw", self.colours, waves)

    def adjoint(self, gradient: Tensor) -> Tensor:
        """A^T g."""
        mixed = torch.einsum("cd,kdhw->kchw", self.colours, gradient)
        return self.amplitude * (self.vertical @ mixed @ self.horizontal.T)


def _cosines(along: Tensor) -> Tensor:
    """(n, n): row f is a cosine of f half waves over n pixels, of length 1 (the DCT-II)."""
    n = len(along)
    rows = torch.cos(math.pi / n * along.unsqueeze(1) * (along + 0.5)) * math.sqrt(2 / n)
    rows[0] = rows[0] / math.sqrt(2)
    return rows
