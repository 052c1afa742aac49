"""A dense network behind filters that nobody trains: what learns well from noisy gradients.

Private training has to hide every weight's gradient, so fewer weights on better features win (Tramer and
Boneh 2021). Here the features are the first order of a scattering transform: oriented waves at two scales,
their modulus, averaged on a grid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seepage.core.errors import ModelError
from seepage.core.types import InputSpec

GRID = 7
"""Averages along each side. Paper: a quarter of the 28 pixels of MNIST, as the scattering transform has it at
J = 2 (Oyallon and Mallat 2015)."""
_SIZE, _SCALES = 7, (1.0, 2.0)
"""Pixels of a filter a side, and widths of its bell. Derived: a bell of width 2 has fallen to a third at 3
pixels from the middle, and the wider waves begin where the narrow ones end."""
_WAVE = 1.5
"""Radians a pixel at scale 1. A choice: about half of the highest frequency that pixels have."""
_FLOOR = 0.1
"""Added to the spread of a map before it is divided by it: a flat one stays flat. A choice: a tenth of what a
picture of full contrast has."""


class FixedFilters(nn.Module):
    """(n, c, h, w) to (n, features): each map of averages standardised within its own picture.

    Nothing in it is trained and no example sees another, so it has no part in a client's gradient.

    >>> FixedFilters(orientations=4)(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 441])
    """

    def __init__(self, *, orientations: int = 8) -> None:
        super().__init__()
        self.register_buffer("waves", _waves(orientations))

    def forward(self, x: Tensor) -> Tensor:
        # (n, c, h, w) -> (n c, 1, h, w): each colour has the same filters
        grey = x.reshape(-1, 1, *x.shape[-2:])
        both = F.conv2d(grey, self.get_buffer("waves").to(grey), padding=_SIZE // 2, stride=2)
        real, imaginary = both.unflatten(1, (-1, 2)).unbind(2)
        modulus = (real.square() + imaginary.square() + 1e-6).sqrt()  # smooth at 0, for who inverts it
        maps = [F.adaptive_avg_pool2d(one, GRID) for one in (grey, modulus)]
        found = torch.cat(maps, dim=1).flatten(2)  # (n c, 1 + 2 orientations, GRID^2)
        found = found - found.mean(dim=2, keepdim=True)
        spread = found.square().mean(dim=2, keepdim=True).sqrt()
        return (found / (spread + _FLOOR)).reshape(len(x), -1)


def filtered_mlp(spec: InputSpec, *, hidden: Sequence[int] = (64,), orientations: int = 8) -> nn.Sequential:
    """Fixed filters and a dense network that is trained on what they give.

    >>> from seepage.core.types import Modality
    >>> filtered_mlp(InputSpec(shape=(1, 28, 28), num_classes=10, modality=Modality.IMAGE))[2].in_features
    833
    """
    if len(spec.shape) != 3 or min(spec.shape[1:]) < GRID:
        raise ModelError(
            f"filtered_mlp looks at pictures of at least {GRID} x {GRID} pixels, not {spec.shape}."
        )
    width = spec.shape[0] * (1 + len(_SCALES) * orientations) * GRID**2
    layers: list[nn.Module] = [FixedFilters(orientations=orientations), nn.Flatten()]
    for entering, leaving in zip((width, *hidden), hidden, strict=False):
        layers += [nn.Linear(entering, leaving), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden[-1] if hidden else width, spec.num_classes))


def _waves(orientations: int) -> Tensor:
    """(2 scales orientations, 1, size, size): cosine and sine of each wave under a bell, without a mean."""
    reach = torch.arange(_SIZE) - _SIZE // 2
    y, x = torch.meshgrid(reach.float(), reach.float(), indexing="ij")
    found = []
    for scale in _SCALES:
        bell = torch.exp(-(x.square() + y.square()) / (2 * scale**2))
        for number in range(orientations):
            angle = math.pi * number / orientations
            along = (x * math.cos(angle) + y * math.sin(angle)) * _WAVE / scale
            for wave in (bell * along.cos(), bell * along.sin()):
                centred = wave - bell * (wave.sum() / bell.sum())
                found.append(centred / centred.norm())
    return torch.stack(found).unsqueeze(1)
