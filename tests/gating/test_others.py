"""Weights outside dense layers and convolutions, against the same weights in a layer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from seepage.core.types import Batch
from seepage.gating import gate
from seepage.gating.others import example_shares, unmeasured
from seepage.gating.shares import layer_shares


class Own(nn.Module):
    """An MLP whose first weight is a parameter of the module itself."""

    def __init__(self, layer: nn.Linear, head: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(layer.weight.data), nn.Parameter(layer.bias.data)
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        read: Tensor = self.head((x.flatten(1) @ self.weight.T + self.bias).relu())
        return read


class Recurrent(nn.Module):
    """An LSTM over so many steps of a picture."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps, self.rnn, self.head = steps, nn.LSTM(36 // steps, 40, batch_first=True), nn.Linear(40, 4)

    def forward(self, x: Tensor) -> Tensor:
        told: Tensor = self.head(self.rnn(x.reshape(len(x), self.steps, -1))[0][:, -1])
        return told


def plain() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 60), nn.ReLU(), nn.Linear(60, 4))


def private(count: int) -> Batch:
    generator = torch.Generator().manual_seed(2)
    return Batch(torch.rand(count, 1, 6, 6, generator=generator), torch.arange(count) % 4)


def test_a_parameter_of_ones_own_has_the_shares_that_it_has_in_a_layer() -> None:
    net, batch = plain(), private(5)
    own = Own(net[1], net[3])
    told = layer_shares(own, batch, "cross_entropy")
    assert [one.name for one in told] == ["head"]
    others = unmeasured(own, told, 36)
    assert list(others) == ["weight", "bias"]
    (mine, _), layer = (
        example_shares(own, batch, "cross_entropy", others),
        layer_shares(net, batch, "cross_entropy")[0],
    )
    lengths = layer.signals.abs() * batch.inputs.flatten(1).norm(dim=1, keepdim=True)
    assert torch.allclose(mine.signals / 5, lengths, rtol=1e-4, atol=1e-7)  # the loss is a mean of five
    assert mine.reads_input and not mine.places
    assert mine.owned().tolist() == layer.owned().tolist()
    assert mine.peelable().tolist() == layer.peelable().tolist()


@pytest.mark.parametrize(("steps", "places"), [(1, False), (6, True)])
def test_what_is_applied_at_several_places_is_told_by_its_rank(steps: int, places: bool) -> None:
    torch.manual_seed(3)
    net, batch = Recurrent(steps), private(3)
    shares = example_shares(net, batch, "auto", unmeasured(net, [], 36))
    reader = next(one for one in shares if one.name == "rnn.weight_ih_l0")
    assert reader.places is places
    assert reader.reads_input is not places


def test_whom_rows_of_such_weights_show_is_named_and_quick_says_that_it_cannot_tell() -> None:
    net, batch = plain(), private(24)
    own = Own(net[1], net[3])
    asked = {"advice": False, "budget": 0.2}
    assert gate(own, None, batch, **asked).exposed == gate(net, None, batch, **asked).exposed != []  # type: ignore[arg-type]
    quick = gate(own, None, batch, quick=True)
    assert quick.answer == "not measured"
    assert "alone in 'weight'" in quick.text()


def test_scales_of_a_norm_and_frozen_weights_are_no_readers() -> None:
    net = nn.Sequential(nn.LayerNorm(64), nn.LSTM(64, 8).requires_grad_(False), nn.Embedding(50, 64))
    assert unmeasured(net, [], 16) == {}


def test_features_of_one_token_are_not_taken_for_a_text() -> None:
    """GPT-2 hands a classifier one token of each text, through weights that are stored inputs first."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=60, n_positions=12, n_embd=32, n_layer=2, n_head=2, num_labels=2, pad_token_id=0,
        bos_token_id=1, eos_token_id=1, attn_implementation="eager", resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    net = transformers.GPT2ForSequenceClassification(config)
    texts = Batch(torch.randint(2, 60, (3, 10)), torch.tensor([0, 1, 0]))
    report = gate(net, None, texts, advice=False)
    assert not [one for one in report.exposures if one.how in ("owned", "unmixed")]
    assert gate(net, None, texts, quick=True).answer == "not measured"
