"""Where crafted weights cannot work, or settings are impossible, the reason is given. No truth is seen."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from seepage.attacks.traps.quantile_traps import quantile_traps
from seepage.attacks.traps.trap_weights import trap_weights
from seepage.core.errors import NotApplicable, SpecError
from seepage.core.types import Broadcast, Exchange, LocalTraining
from seepage.protocol import local_update

from .helpers import (
    dense_net,
    image_batch,
    image_spec,
    knowing,
)


@pytest.mark.parametrize(
    ("model", "deny", "why"),
    [
        (dense_net(image_spec(), 20), ["value_range"], "range of the input values is unknown"),
        (nn.Sequential(nn.Flatten(), nn.Linear(36, 5)), [], "not followed by a ReLU"),
        (nn.Sequential(nn.Flatten(), nn.Linear(36, 9, bias=False), nn.ReLU()), [], "no bias"),
        (nn.Sequential(nn.Conv2d(1, 5, 6), nn.Flatten()), [], "no nn.Linear at all"),
    ],
)  # fmt: skip
def test_where_traps_cannot_work_the_reason_is_given(model: nn.Module, deny: list[str], why: str) -> None:
    spec = image_spec()
    with pytest.raises(NotApplicable, match=why):
        trap_weights().check(model, knowing(spec, deny=deny))


def test_unknown_normalisation_is_refused() -> None:
    spec = image_spec(normalised=True)
    with pytest.raises(NotApplicable, match="normalise their inputs in a way the server was not told"):
        trap_weights().check(dense_net(spec, 20), knowing(spec, deny=["normalisation"]))


def test_frozen_layers_and_wrong_names_are_refused() -> None:
    spec = image_spec()
    model = dense_net(spec, 20)
    with pytest.raises(NotApplicable, match="unknown linear layer 'l'"):
        trap_weights(layer="l").check(model, knowing(spec))
    model[1].requires_grad_(False)
    with pytest.raises(NotApplicable, match="frozen"):
        trap_weights(layer="1").check(model, knowing(spec))


@pytest.mark.parametrize(
    "options",
    [{"scale": 1.5}, {"sigma": 0.0}, {"tuning_rounds": 9}, {"rounds": []}, {"clients": []}, {"read": "row"}],
)
def test_impossible_settings_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(SpecError):
        trap_weights(**options)


@pytest.mark.parametrize(
    "options", [{"sigma": 0.0}, {"batch_size": 1}, {"firing": [2, 1]}, {"firing": [1, 2, 3]}]
)
def test_impossible_quantiles_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(SpecError):
        quantile_traps(**options)


def test_a_crafted_model_that_was_never_sent_is_said_so() -> None:
    spec = image_spec()
    model, batch = dense_net(spec, 20), image_batch(spec, 4)
    sent = local_update(Broadcast(model), batch, LocalTraining())
    seen = Exchange(broadcast=Broadcast(model), update=sent, clients=(0,))
    with pytest.raises(NotApplicable, match="never sent"):
        trap_weights(rounds=(3,)).run([seen], knowing(spec))


def test_neither_crafting_nor_reading_depends_on_anything_but_updates() -> None:
    """Truth isolation: the same update from a changed truth gives the same reconstruction."""
    spec = image_spec((1, 6, 6))
    model, batch = dense_net(spec, 60), image_batch(spec, 10)
    attack = trap_weights(scale=0.85)
    crafted = attack.craft(model, (), knowing(spec))
    again = attack.craft(model, (), knowing(spec))
    assert crafted is not None and again is not None
    for a, b in zip(crafted.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)
    sent = local_update(Broadcast(crafted.model), batch, LocalTraining())
    seen = Exchange(broadcast=Broadcast(crafted.model), update=sent, clients=(0,), secret=crafted.secret)
    first = attack.run([seen], knowing(spec))
    batch.inputs.zero_()
    assert torch.equal(first.values, attack.run([seen], knowing(spec)).values)
