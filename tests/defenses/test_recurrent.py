"""Recurrent layers taken apart: torch's own layers and one backward pass an example are the reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from seepage.core.types import Batch
from seepage.defenses import per_example
from seepage.defenses.per_example import loop_gradients, per_example_gradients
from seepage.defenses.recurrent import taken_apart, unrolled

KINDS = {
    "lstm": lambda **k: nn.LSTM(6, 5, **k),
    "gru": lambda **k: nn.GRU(6, 5, **k),
    "tanh": lambda **k: nn.RNN(6, 5, **k),
    "relu": lambda **k: nn.RNN(6, 5, nonlinearity="relu", **k),
}
SHAPES = {
    "plain": {},
    "two layers": {"num_layers": 2},
    "both ways": {"bidirectional": True, "num_layers": 2},
    "no bias": {"bias": False},
}


class Reader(nn.Module):
    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(5 * (2 if layer.bidirectional else 1), 4)

    def forward(self, x: Tensor) -> Tensor:
        out, last = self.layer(x)
        state = last[0] if isinstance(last, tuple) else last
        return self.head(out[:, -1]) + state.mean(dim=(0, 2))[:, None]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_unrolled_gives_what_the_layer_gives(kind, shape) -> None:
    torch.manual_seed(0)
    layer = KINDS[kind](**SHAPES[shape]).double()
    x = torch.rand(7, 3, 6, dtype=torch.float64)
    directions = 2 if layer.bidirectional else 1
    start = torch.rand(layer.num_layers * directions, 3, 5, dtype=torch.float64)
    for first in (None, (start, start / 2) if kind == "lstm" else start):
        out, last = layer(x, first)
        found, end = unrolled(layer, x, first)
        assert torch.allclose(found, out, atol=1e-12)
        pairs = zip(end, last, strict=True) if kind == "lstm" else [(end, last)]
        assert all(torch.allclose(a, b, atol=1e-12) for a, b in pairs)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_by_example_against_a_loop(kind, shape, monkeypatch) -> None:
    torch.manual_seed(1)
    model = Reader(KINDS[kind](batch_first=True, **SHAPES[shape])).double()
    batch = Batch(torch.rand(3, 7, 6, dtype=torch.float64), torch.randint(4, (3,)))
    parameters = dict(model.named_parameters())
    expected = loop_gradients(model, parameters, {}, batch, "auto")
    monkeypatch.setattr(per_example, "loop_gradients", None)  # it must not come to that
    found = per_example_gradients(model, parameters, {}, batch, "auto")
    assert all(torch.allclose(found[name], expected[name], atol=1e-12) for name in parameters)


def test_the_model_is_as_it_was_afterwards() -> None:
    model = Reader(nn.LSTM(6, 5, batch_first=True))
    with pytest.raises(KeyError), taken_apart(model):
        assert model.layer.forward.func is unrolled
        raise KeyError
    assert "forward" not in vars(model.layer)


def test_a_projection_is_looped_over() -> None:
    """torch's own layer does it, one example after another."""
    torch.manual_seed(2)
    model = Reader(nn.LSTM(6, 8, proj_size=5, batch_first=True)).double()
    batch = Batch(torch.rand(2, 7, 6, dtype=torch.float64), torch.tensor([0, 3]))
    parameters = dict(model.named_parameters())
    found = per_example_gradients(model, parameters, {}, batch, "auto")
    expected = loop_gradients(model, parameters, {}, batch, "auto")
    assert all(torch.equal(found[name], expected[name]) for name in parameters)
