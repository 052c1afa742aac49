"""Residual networks (He et al. 2016): the CIFAR ones of Sec. 4.2 and ResNet-18.

Parameter names are those of the checkpoints in circulation: akamaster/pytorch_resnet_cifar10 for
the CIFAR ones, torchvision's for ResNet-18.
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from seepage.core.errors import ModelError
from seepage.core.types import InputSpec
from seepage.models.shapes import image_shape, require_positive


class PadShortcut(nn.Module):
    """Option A of He et al., Sec. 3.3: every second pixel, new channels zero. It has no parameters."""

    def __init__(self, new_channels: int, stride: int) -> None:
        super().__init__()
        self.before = new_channels // 2
        self.after = new_channels - self.before
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        subsampled = x[:, :, :: self.stride, :: self.stride]
        return F.pad(
            subsampled, (0, 0, 0, 0, self.before, self.after)
        )  # (left, right, top, bottom, channels)


def projection_shortcut(in_channels: int, channels: int, stride: int) -> nn.Sequential:
    """Option B of He et al., Sec. 3.3: a strided 1x1 convolution."""
    return nn.Sequential(
        nn.Conv2d(in_channels, channels, kernel_size=1, stride=stride, bias=False),
        nn.BatchNorm2d(channels),
    )


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, called `downsample` as in torchvision's checkpoints."""

    def __init__(self, in_channels: int, channels: int, stride: int, *, option: Literal["A", "B"]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(channels, channels, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or in_channels != channels:
            self.downsample = (
                PadShortcut(channels - in_channels, stride)
                if option == "A"
                else projection_shortcut(in_channels, channels, stride)
            )
        self.relu2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu1(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu2(out + self.downsample(x))  # type: ignore[no-any-return]


def _stage(
    in_channels: int, channels: int, blocks: int, stride: int, option: Literal["A", "B"]
) -> nn.Sequential:
    first = BasicBlock(in_channels, channels, stride, option=option)
    rest = [BasicBlock(channels, channels, 1, option=option) for _ in range(blocks - 1)]
    return nn.Sequential(first, *rest)


class CifarResNet(nn.Module):
    """6n + 2 layers: a 3x3 convolution, three stages of n blocks, mean over pixels, linear."""

    def __init__(self, in_channels: int, num_classes: int, *, blocks: int, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, kernel_size=3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.layer1 = _stage(width, width, blocks, 1, "A")
        self.layer2 = _stage(width, 2 * width, blocks, 2, "A")
        self.layer3 = _stage(2 * width, 4 * width, blocks, 2, "A")
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.linear = nn.Linear(4 * width, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(self.flatten(self.pool(x)))  # type: ignore[no-any-return]


def _cifar_resnet(spec: InputSpec, name: str, *, blocks: int, width: int) -> CifarResNet:
    channels, _, _ = image_shape(spec, name)
    require_positive(name, width=width)
    return CifarResNet(channels, spec.num_classes, blocks=blocks, width=width)


def resnet20(spec: InputSpec, *, width: int = 16) -> CifarResNet:
    """CIFAR ResNet-20; `width=64` and `width=160` are the wider ResNet20-4 and ResNet20-10."""
    return _cifar_resnet(spec, "resnet20", blocks=3, width=width)


def resnet32(spec: InputSpec, *, width: int = 16) -> CifarResNet:
    """CIFAR ResNet-32."""
    return _cifar_resnet(spec, "resnet32", blocks=5, width=width)


def resnet56(spec: InputSpec, *, width: int = 16) -> CifarResNet:
    """CIFAR ResNet-56."""
    return _cifar_resnet(spec, "resnet56", blocks=9, width=width)


class ResNet18(nn.Module):
    """Four stages of two blocks, projection shortcuts."""

    def __init__(self, in_channels: int, num_classes: int, *, width: int, large_stem: bool) -> None:
        super().__init__()
        self.conv1 = (
            nn.Conv2d(in_channels, width, kernel_size=7, stride=2, padding=3, bias=False)
            if large_stem
            else nn.Conv2d(in_channels, width, kernel_size=3, padding=1, bias=False)
        )
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1) if large_stem else nn.Identity()
        self.layer1 = _stage(width, width, 2, 1, "B")
        self.layer2 = _stage(width, 2 * width, 2, 2, "B")
        self.layer3 = _stage(2 * width, 4 * width, 2, 2, "B")
        self.layer4 = _stage(4 * width, 8 * width, 2, 2, "B")
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(8 * width, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.flatten(self.avgpool(x)))  # type: ignore[no-any-return]


def resnet18(
    spec: InputSpec, *, width: int = 64, stem: Literal["auto", "imagenet", "cifar"] = "auto"
) -> ResNet18:
    """ResNet-18. `stem`: imagenet is 7x7 stride 2 and a max-pool, cifar is 3x3 stride 1 without one;
    auto takes cifar for images of up to 64 pixels, where the large stem would leave 1-2 pixels a side.
    """
    channels, height, width_px = image_shape(spec, "resnet18")
    require_positive("resnet18", width=width)
    if stem not in ("auto", "imagenet", "cifar"):
        raise ModelError(f"model 'resnet18': stem must be 'auto', 'imagenet' or 'cifar', not {stem!r}.")
    large_stem = stem == "imagenet" or (stem == "auto" and max(height, width_px) > 64)
    return ResNet18(channels, spec.num_classes, width=width, large_stem=large_stem)
