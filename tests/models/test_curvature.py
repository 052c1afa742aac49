"""Backward signals at a layer's outputs, and their derivatives: against autograd's whole Hessian."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from seepage.core.types import InputSpec, Modality
from seepage.models.curvature import SignalCurvature
from seepage.models.layers import trace_linear_layers
from seepage.models.signals import BackwardSignals

SPEC = InputSpec(modality=Modality.TABULAR, shape=(6,), num_classes=3)


@pytest.mark.parametrize("activation", [nn.Tanh(), nn.GELU(), nn.ReLU(inplace=True)])
def test_signals_are_those_of_the_model_and_derivatives_those_of_autograd(activation: nn.Module) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), activation, nn.Linear(5, 3)).train()
    layer = trace_linear_layers(model, SPEC)[0]
    signals = BackwardSignals(model, layer, SPEC, loss="cross_entropy")
    x, label = torch.randn(4, 6), 2
    outputs, along = model[0](x).detach(), torch.randn(5, 3, dtype=torch.float64)
    d, moved = SignalCurvature(signals).at(outputs, label, along)
    expected = signals.at_all_rows(x, torch.full((4,), label))
    assert torch.allclose(d.float(), expected, atol=1e-6)
    tail = model[1:].double().eval()

    def loss(z: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(tail(z.clone().unsqueeze(0)), torch.tensor([label]))

    for z, ours in zip(outputs.double(), moved, strict=True):
        hessian = torch.autograd.functional.hessian(loss, z)
        assert torch.allclose(ours, hessian @ along, atol=1e-10)


def test_the_model_stays_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).train()
    signals = BackwardSignals(model, trace_linear_layers(model, SPEC)[0], SPEC, loss="cross_entropy")
    SignalCurvature(signals).at(torch.randn(2, 5), 0, torch.eye(5))
    assert model.training and model[0].weight.dtype == torch.float32
    assert all(p.grad is None for p in model.parameters())
