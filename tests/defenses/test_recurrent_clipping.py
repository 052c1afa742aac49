"""Clipping by example with recurrent layers, against gradients taken one by one and clipped by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from seepage.core.types import Batch
from seepage.defenses.per_example import clip_factors, clipped_sum, loop_gradients
from seepage.defenses.recurrent_clipping import recurrent_clipped_sum

KINDS = {"lstm": nn.LSTM, "gru": nn.GRU, "tanh": nn.RNN}
SHAPES = {"plain": {}, "both ways": {"bidirectional": True, "num_layers": 2}, "no bias": {"bias": False}}


class Reader(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **shape) -> None:
        super().__init__()
        self.layer = kind(6, 5, batch_first=True, **shape)
        self.head = nn.Linear(5 * (2 if self.layer.bidirectional else 1), 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0].mean(dim=1))


class CalledTwice(Reader):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.head(self.layer(-x)[0][:, -1])


class UsedElsewhere(Reader):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.layer.weight_hh_l0.square().sum()


def by_hand(model: nn.Module, batch: Batch, clip: float) -> dict[str, Tensor]:
    grads = loop_gradients(model, dict(model.named_parameters()), {}, batch, "auto")
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
    assert norms.min() < clip < norms.max()  # else the test shows nothing
    return {name: torch.tensordot(clip_factors(norms, clip), g, dims=1) for name, g in grads.items()}


def setting(model: nn.Module, steps: int = 7) -> tuple[nn.Module, Batch, float]:
    torch.manual_seed(3)
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.5)
    batch = Batch(torch.randn(6, steps, 6, dtype=torch.float64), torch.randint(4, (6,)))
    grads = loop_gradients(model.double(), dict(model.named_parameters()), {}, batch, "auto")
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
    return model, batch, float(norms.median()) + 1e-6


@pytest.mark.parametrize("steps", [2, 40])  # by products of steps, and by the gradients themselves
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_clipped_sum_against_clipping_by_hand(kind, shape, steps) -> None:
    model, batch, clip = setting(Reader(KINDS[kind], **SHAPES[shape]), steps)
    found = recurrent_clipped_sum(model, dict(model.named_parameters()), {}, batch, "auto", clip=clip)
    expected = by_hand(model, batch, clip)
    assert found is not None
    assert list(found) == list(expected)
    assert all(torch.allclose(found[name], expected[name], atol=1e-12) for name in expected)


@pytest.mark.parametrize("model", [CalledTwice, UsedElsewhere])
def test_weights_whose_gradient_is_not_all_on_the_tape_are_taken_apart_in_full(model) -> None:
    network, batch, clip = setting(model(nn.LSTM))
    parameters = dict(network.named_parameters())
    assert recurrent_clipped_sum(network, parameters, {}, batch, "auto", clip=clip) is None
    found = clipped_sum(network, parameters, {}, batch, "auto", clip=clip)
    expected = by_hand(network, batch, clip)
    assert all(torch.allclose(found[name], expected[name], atol=1e-12) for name in expected)


def test_a_frozen_weight_has_no_part_in_the_norm() -> None:
    model, batch, _ = setting(Reader(nn.LSTM))
    model.layer.weight_ih_l0.requires_grad_(False)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    found = recurrent_clipped_sum(model, parameters, {}, batch, "auto", clip=0.05)
    grads = loop_gradients(model, parameters, {}, batch, "auto")
    factors = clip_factors(torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0), 0.05)
    assert found is not None
    for name, expected in grads.items():
        assert torch.allclose(found[name], torch.tensordot(factors, expected, dims=1), atol=1e-12)
