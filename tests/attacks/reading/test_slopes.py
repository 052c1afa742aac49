"""Targets that are numbers: an example sends a combination of slopes, which the gradient's span tells."""

from __future__ import annotations

import torch
from torch import nn

from seepage.attacks.reading.slopes import inside, slopes
from seepage.core.types import Batch, Broadcast, InputSpec, LocalTraining, Modality
from seepage.models.layers import trace_linear_layers
from seepage.models.signals import BackwardSignals
from seepage.protocol import local_update


def test_the_combination_is_what_the_loss_sent_back() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(12, 80), nn.ReLU(), nn.Linear(80, 40), nn.ReLU(), nn.Linear(40, 3)
    ).double()
    spec = InputSpec(modality=Modality.TABULAR, shape=(12,), num_classes=1, num_targets=3, value_range=None)
    x, y = torch.randn(5, 12).double(), torch.randn(5, 3).double()
    sent = local_update(Broadcast(model), Batch(x, y), LocalTraining()).tensors
    u, s, _ = torch.linalg.svd(torch.cat([sent["0.weight"], sent["0.bias"].unsqueeze(1)], dim=1))
    basis = u[:, : int((s > 1e-9 * s[0]).sum())]
    assert basis.shape[1] == 5
    signals = BackwardSignals(model, trace_linear_layers(model, spec)[0], spec, loss="mean_squared_error")
    found = inside(slopes(signals, x), basis)
    wanted = model(x).detach() - y  # the derivative of the squared error, but for its factor
    assert torch.allclose(torch.cosine_similarity(found, wanted).abs(), torch.ones(5).double(), atol=1e-6)


def test_slopes_are_the_jacobian_of_what_follows() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    spec = InputSpec(modality=Modality.TABULAR, shape=(4,), num_classes=1, num_targets=2, value_range=None)
    signals = BackwardSignals(model, trace_linear_layers(model, spec)[0], spec, loss="mean_squared_error")
    x = torch.randn(1, 4)
    jacobian = torch.autograd.functional.jacobian(model[1:], model[0](x).detach()[0])
    assert torch.allclose(slopes(signals, x)[0], jacobian, atol=1e-6)
