"""Sharing some layers only, and hiding the bias by which rows are divided."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from seepage.core.errors import ModelError, SpecError
from seepage.core.types import Batch, Broadcast, LocalTraining
from seepage.defenses.hide_bias import hide_bias
from seepage.defenses.share_layers import share_layers
from seepage.protocol import client, local_update


class Reversed(nn.Module):
    """Registered in the opposite order of execution."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(7, 3)
        self.body = nn.Sequential(nn.Linear(6, 7), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


@pytest.fixture
def received() -> Broadcast:
    torch.manual_seed(0)
    return Broadcast(Reversed().double())


BATCH = Batch(
    torch.rand(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64),
    torch.tensor([0, 1, 2, 1]),
)


def changed(received: Broadcast, defense, training: LocalTraining | None = None) -> dict[str, str]:
    """By parameter: sent as it is, as zeros, or as something else."""
    training = training or LocalTraining()
    plain = local_update(received, BATCH, training).tensors
    sent = client(training, [defense])(received, BATCH).tensors
    assert set(sent) == set(plain)

    def kind(name: str) -> str:
        if torch.equal(sent[name], plain[name]):
            return "same"
        return "zeros" if not sent[name].any() else "other"

    return {name: kind(name) for name in plain}


HEAD, BODY = ("head.weight", "head.bias"), ("body.0.weight", "body.0.bias")


@pytest.mark.parametrize(
    ("only", "shared"),
    [
        (["head"], HEAD),
        (["body"], BODY),
        (["body.0.bias", "head.weight"], ("body.0.bias", "head.weight")),
        (None, HEAD),
    ],
)
def test_the_others_are_zeros(received, only, shared) -> None:
    expected = {name: "same" if name in shared else "zeros" for name in (*HEAD, *BODY)}
    assert changed(received, share_layers(only=only)) == expected
    assert changed(received, share_layers(only=only), LocalTraining(algorithm="fedavg")) == expected


def test_sharing_refuses_what_does_not_exist(received) -> None:
    with pytest.raises(SpecError, match="unknown layer to share 'haed': did you mean 'head'"):
        client(LocalTraining(), [share_layers(only=["haed"])])(received, BATCH)
    for only in ([], "head"):
        with pytest.raises(ValueError, match="only must be a list of at least one layer"):
            share_layers(only=only)


def test_the_first_bias_that_runs_is_hidden(received) -> None:
    untouched = dict.fromkeys((*HEAD, *BODY), "same")
    assert changed(received, hide_bias()) == {**untouched, "body.0.bias": "zeros"}
    assert changed(received, hide_bias(layer="head")) == {**untouched, "head.bias": "zeros"}
    assert changed(received, hide_bias(how="noise")) == {**untouched, "body.0.bias": "other"}


def test_the_noise_has_the_norm_of_what_it_replaces(received) -> None:
    true = local_update(received, BATCH, LocalTraining()).tensors["body.0.bias"]

    def sent(seed: int) -> Tensor:
        step = client(LocalTraining(), [hide_bias(how="noise", seed=seed)])
        return step(received, BATCH).tensors["body.0.bias"]

    assert sent(1).norm().item() == pytest.approx(true.norm().item())
    assert torch.equal(sent(1), sent(1))
    assert not torch.equal(sent(1), sent(2))


def test_rows_stay_multiples_of_the_input_without_the_bias(received) -> None:
    """Why it is heuristic: with the largest value known, a single example is read all the same."""
    one = BATCH.select(slice(0, 1))
    rows = client(LocalTraining(), [hide_bias()])(received, one).tensors["body.0.weight"]
    row = rows[rows.norm(dim=1).argmax()]
    rescaled = row / row[row.abs().argmax()] * one.inputs.max()
    assert torch.allclose(rescaled, one.inputs[0], atol=1e-12)


def test_hiding_refuses_what_does_not_exist(received) -> None:
    with pytest.raises(ValueError, match="how must be 'zeros' or 'noise', not 'drop'"):
        hide_bias(how="drop")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"unknown dense layer with a bias 'body'.*Valid: body\.0, head"):
        client(LocalTraining(), [hide_bias(layer="body")])(received, BATCH)
    without = Broadcast(nn.Linear(6, 3, bias=False).double())
    with pytest.raises(ModelError, match="no bias to hide"):
        client(LocalTraining(), [hide_bias()])(without, BATCH)
