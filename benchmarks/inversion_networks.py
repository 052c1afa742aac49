"""Ten settings of an inversion, in plain torch: the peer builds the same networks in its own environment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, width, 3, stride=stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(width)
        same = stride == 1 and before == width
        self.short = nn.Identity() if same else nn.Conv2d(before, width, 1, stride=stride, bias=False)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        inner = self.relu(self.first_norm(self.first(x)))
        out: Tensor = self.relu(self.second_norm(self.second(inner)) + self.short(x))
        return out


def resnet(widths: tuple[int, ...], blocks: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 3, padding=1, bias=False)]
    layers += [nn.BatchNorm2d(widths[0]), nn.ReLU()]
    before = widths[0]
    for stage, width in enumerate(widths):
        for number in range(blocks):
            layers.append(Block(before, width, 2 if stage and not number else 1))
            before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


def chain(activation: Callable[[], nn.Module], *, norm: bool = False, pool: bool = True) -> nn.Module:
    layers: list[nn.Module] = []
    for before, width in ((3, 32), (32, 32), (32, 64), (64, 64)):
        grows = before != width
        layers.append(nn.Conv2d(before, width, 3, stride=1 if grows or pool else 2, padding=1))
        layers += [nn.GroupNorm(8, width)] if norm else []
        layers.append(activation())
        layers += [nn.MaxPool2d(2)] if pool and not grows else []
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 64, 10))


class Transformer(nn.Module):
    """A vision transformer on patches of 4 x 4."""

    def __init__(self, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.place = nn.Parameter(0.02 * torch.randn(1, 64, width))
        one = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
        self.layers = nn.ModuleList(
            [nn.TransformerEncoderLayer(width, 4, 2 * width, **one) for _ in range(depth)]
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.patches(x).flatten(2).transpose(1, 2) + self.place
        for layer in self.layers:
            rows = layer(rows)
        out: Tensor = self.head(rows.mean(dim=1))
        return out


@dataclass(frozen=True)
class Setting:
    build: Callable[[], nn.Module]
    batch: int = 1
    local_steps: int = 0
    """Of FedAvg at a rate of .01, one example each; 0: a gradient is sent."""

    def model(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return self.build().eval()


SETTINGS = {
    "ResNet-18": Setting(lambda: resnet((64, 128, 256, 512), 2)),
    "ResNet-20": Setting(lambda: resnet((16, 32, 64), 3)),
    "CNN, max-pools": Setting(lambda: chain(nn.ReLU)),
    "CNN, strides": Setting(lambda: chain(nn.ReLU, pool=False)),
    "ViT": Setting(Transformer),
    "CNN, batch of 4": Setting(lambda: chain(nn.ReLU), batch=4),
    "CNN, batch of 8": Setting(lambda: chain(nn.ReLU, pool=False), batch=8),
    "GroupNorm": Setting(lambda: chain(nn.ReLU, norm=True)),
    "GELU": Setting(lambda: chain(nn.GELU)),
    "CNN, FedAvg 4 steps": Setting(lambda: chain(nn.ReLU), batch=4, local_steps=4),
}


@contextmanager
def step_times() -> Iterator[list[float]]:
    """CPU time at every call of torch.optim.Adam, by which both sides move their candidates."""
    plain, times = torch.optim.Adam.step, list[float]()

    def step(self, closure=None):  # type: ignore[no-untyped-def]
        times.append(time.process_time())
        return plain(self, closure)

    torch.optim.Adam.step = step  # type: ignore[method-assign]
    try:
        yield times
    finally:
        torch.optim.Adam.step = plain  # type: ignore[method-assign]
