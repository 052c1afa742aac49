"""Which networks are taken for piecewise linear without a test on numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from seepage.attacks.inversion.piecewise_linear import is_known_chain
from seepage.core.types import InputSpec, Modality
from seepage.models.loading import build_model

SPEC = InputSpec(modality=Modality.IMAGE, shape=(3, 32, 32), num_classes=10)


def used_twice() -> nn.Module:
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.ReLU(), layer)


def tied() -> nn.Module:
    chain = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    chain[2].weight = chain[0].weight
    return chain


def hooked() -> nn.Module:
    chain = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    chain[0].register_forward_hook(lambda module, args, output: output.sigmoid())
    return chain


def hooked_as_a_whole() -> nn.Module:
    chain = nn.Sequential(nn.Sequential(nn.Linear(3, 3)), nn.ReLU())
    chain[0].register_forward_pre_hook(lambda module, args: (args[0].tanh(),))
    return chain


def patched() -> nn.Module:
    chain = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    chain[1].forward = torch.sigmoid
    return chain


def parametrised() -> nn.Module:
    chain = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    nn.utils.parametrizations.weight_norm(chain[0])
    return chain


class Doubled(nn.ReLU):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) ** 2


@pytest.mark.parametrize(
    "model",
    [
        used_twice(),
        tied(),
        hooked(),
        hooked_as_a_whole(),
        patched(),
        parametrised(),
        nn.Sequential(nn.Linear(3, 3), Doubled()),
        nn.Sequential(nn.Linear(3, 3), nn.GELU()),
        nn.Sequential(nn.Flatten(0), nn.Linear(3, 3)),
        nn.Sequential(nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect")),
        nn.Sequential(nn.Conv2d(1, 1, 2, padding="same")),
        nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False)),
        build_model("lenet_zhu", SPEC, seed=0),
        build_model("resnet20", SPEC, seed=0),
    ],
)
def test_is_not_taken_for_one(model: nn.Module) -> None:
    assert not is_known_chain(model)


@pytest.mark.parametrize("name", ["convnet", "mlp"])
def test_own_models(name: str) -> None:
    assert is_known_chain(build_model(name, SPEC, seed=0))


def test_nested() -> None:
    inner = nn.Sequential(nn.Conv2d(1, 2, 3, padding="same"), nn.BatchNorm2d(2), nn.LeakyReLU(inplace=True))
    assert is_known_chain(nn.Sequential(inner, nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(), nn.Linear(8, 2)))
