"""What lies between two linear layers, against models whose activation is known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seepage.core.types import InputSpec, Modality
from seepage.models.between import Between, next_linear
from seepage.models.layers import trace_linear_layers

SPEC = InputSpec(modality=Modality.TABULAR, shape=(6,), num_classes=3)


def between(model: nn.Module) -> Between | None:
    return next_linear(model, trace_linear_layers(model, SPEC)[0], SPEC)


class Functional(nn.Module):
    def __init__(self, *, skip: bool = False) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)
        self.skip = skip

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.silu(self.first(x))
        return self.last(hidden + x if self.skip else hidden)


@pytest.mark.parametrize(
    "activation", [nn.Tanh(), nn.GELU(), nn.SiLU(), nn.LeakyReLU(0.2, inplace=True), nn.Sigmoid()]
)
def test_modules_are_found_with_their_slopes(activation: nn.Module) -> None:
    found = between(nn.Sequential(nn.Linear(6, 8), activation, nn.Dropout(0.5), nn.Linear(8, 3)))
    assert found is not None and found.next.name == "3"
    at = torch.linspace(-2, 2, 8, dtype=torch.float64).unsqueeze(0)
    read, slopes = found.with_slopes(at)
    assert torch.allclose(read, activation(at.clone()))
    step = 1e-6
    assert torch.allclose(slopes, (activation(at + step) - activation(at - step)) / (2 * step), atol=1e-6)


def test_nothing_is_run_for_no_example() -> None:
    class Headed(Functional):
        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = super().forward(x.view(len(x), 2, -1).flatten(1))  # fails on an empty batch
            return out

    found = between(Headed())
    assert found is not None and found.apply(torch.zeros(0, 6, dtype=torch.float64)).shape == (0, 6)


def test_functional_activations_are_found_by_behaviour() -> None:
    found = between(Functional())
    assert found is not None
    at = torch.randn(3, 6, dtype=torch.float64)
    assert torch.allclose(found.apply(at), F.silu(at))


def test_batch_norm_in_eval_mode_acts_on_each_neuron() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    model[1].running_mean.normal_()
    model[1].running_var.uniform_(0.5, 2)
    found = between(model)
    assert found is not None
    at = torch.randn(4, 8)
    assert torch.allclose(found.apply(at.double()).float(), model.eval()[1:3](at), atol=1e-5)


def test_what_mixes_neurons_or_passes_them_by_is_not_taken_for_one() -> None:
    normed = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3))
    assert between(normed) is None and between(Functional(skip=True)) is None
    assert between(nn.Sequential(nn.Linear(6, 3))) is None
