"""A small reversible network (i-RevNet, Jacobsen et al. 2018): no layer before the head loses anything.

Space-to-depth moves pixels into channels; additive coupling adds a function of one half of the channels to
the other half. Both have exact inverses, so whoever knows the features that the head reads knows the picture.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage.core.errors import ModelError
from seepage.core.types import InputSpec
from seepage.models.shapes import image_shape, require_positive


class Coupling(nn.Module):
    """(a, b) -> (b, a + f(b)) on the halves of the channels; f need not be invertible.

    >>> block = Coupling(channels=4, width=3)
    >>> x = torch.rand(2, 4, 5, 5)
    >>> torch.allclose(block.inverse(block(x)), x, atol=1e-5)
    True
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        half = channels // 2
        self.first = nn.Conv2d(half, width, kernel_size=3, padding=1)
        self.relu = nn.ReLU()
        self.second = nn.Conv2d(width, half, kernel_size=3, padding=1)

    def _residual(self, half: Tensor) -> Tensor:
        return self.second(self.relu(self.first(half)))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=1)
        return torch.cat([b, a + self._residual(b)], dim=1)

    def inverse(self, y: Tensor) -> Tensor:
        """b is there unchanged, so what was added to a can be computed again and taken away."""
        b, a = y.chunk(2, dim=1)
        return torch.cat([a - self._residual(b), b], dim=1)


class SpaceToDepth(nn.Module):
    """(n, c, h, w) -> (n, 4c, h/2, w/2): every value keeps a place of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_unshuffle(x, 2)

    def inverse(self, y: Tensor) -> Tensor:
        return F.pixel_shuffle(y, 2)


class IRevNet(nn.Module):
    """Invertible steps one after the other, then a linear head on all of their values."""

    def __init__(
        self, steps: Sequence[SpaceToDepth | Coupling], feature_shape: tuple[int, ...], num_outputs: int
    ) -> None:
        super().__init__()
        self.body = nn.Sequential(*steps)
        self.feature_shape = feature_shape
        self.head = nn.Linear(math.prod(feature_shape), num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).flatten(1))  # type: ignore[no-any-return]

    def features_to_input(self, features: Tensor) -> Tensor:
        """(n, d) inputs of the head to the (n, channels, height, width) pictures that they come from."""
        x = features.reshape(-1, *self.feature_shape)
        for step in reversed(self.body):
            assert isinstance(step, SpaceToDepth | Coupling)
            x = step.inverse(x)
        return x


def irevnet(spec: InputSpec, *, stages: int = 2, blocks: int = 2, width: int = 32) -> IRevNet:
    """Halves the sides `stages` times, with `blocks` couplings of `width` inner channels after each.

    >>> from seepage.core.types import Modality
    >>> irevnet(InputSpec(modality=Modality.IMAGE, shape=(3, 32, 32), num_classes=10)).head
    Linear(in_features=3072, out_features=10, bias=True)
    """
    shape = image_shape(spec, "irevnet", smallest=2)
    require_positive("irevnet", stages=stages, blocks=blocks, width=width)
    channels, height, width_px = shape
    factor = 2**stages
    if height % factor or width_px % factor:
        raise ModelError(
            f"model 'irevnet' halves the sides of an image {stages} time(s), which {height}x{width_px} "
            f"pixels do not allow; choose fewer stages, or resize the images to a multiple of {factor}."
        )
    steps: list[SpaceToDepth | Coupling] = []
    for stage in range(1, stages + 1):
        steps += [SpaceToDepth(), *(Coupling(channels * 4**stage, width) for _ in range(blocks))]
    feature_shape = (channels * factor**2, height // factor, width_px // factor)
    return IRevNet(steps, feature_shape, spec.num_classes)
