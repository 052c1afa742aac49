"""Amplification: which numbers change, by how much gradients grow, and what noise then hides."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from seepage.attacks import ATTACKS
from seepage.attacks.traps.amplification import amplification
from seepage.core.errors import NotApplicable, SpecError
from seepage.core.types import Batch, Broadcast, Exchange, LocalTraining, Update
from seepage.protocol import client

from .helpers import dense_net, found_examples, image_batch, image_spec, knowing

SPEC = image_spec((1, 8, 8))


def noisy(model: nn.Module, batch: Batch, sigma: float) -> Update:
    update = client(LocalTraining())(Broadcast(model), batch)
    generator = torch.Generator().manual_seed(3)
    tensors = {
        n: t + sigma * torch.randn(t.shape, generator=generator, dtype=t.dtype)
        for n, t in update.tensors.items()
    }
    return replace(update, tensors=tensors)


def test_the_last_weights_alone_are_multiplied() -> None:
    net, known = dense_net(SPEC, 30, 20), knowing(SPEC)
    sent = amplification(factor=100.0).craft(net, (), known)
    assert sent is not None
    for name, parameter in net.named_parameters():
        factor = 100.0 if name == "5.weight" else 1.0
        assert torch.allclose(sent.model.get_parameter(name), factor * parameter)


def test_a_wrongly_classified_example_sends_a_gradient_as_many_times_as_large() -> None:
    """Saturated, its residual is one-hot minus one-hot: the first layer's gradient follows by hand."""
    net, batch = dense_net(SPEC, 30), image_batch(SPEC, 1, seed=2)
    sent = amplification(factor=1e4).craft(net, (), knowing(SPEC))
    assert sent is not None
    logits = sent.model(batch.inputs)[0]
    wrong = Batch(batch.inputs, logits.argsort()[:1])  # the least likely class as its label
    gradient = client(LocalTraining())(Broadcast(sent.model), wrong).tensors["1.bias"]
    head, hidden = net.get_parameter("3.weight"), net[1](batch.inputs.flatten(1))[0]
    by_hand = 1e4 * (head[int(logits.argmax())] - head[int(wrong.labels)]) * (hidden > 0)
    assert torch.allclose(gradient, by_hand.detach(), rtol=1e-4)


def test_noise_hides_an_honest_update_and_not_an_amplified_one() -> None:
    net, batch, known = dense_net(SPEC, 80), image_batch(SPEC, 8, seed=4), knowing(SPEC)
    sent = amplification(read="rows").craft(net, (), known)
    assert sent is not None
    shares = []
    for attack, model, secret in (
        (ATTACKS["analytic_extraction"](), net, None),
        (amplification(read="rows"), sent.model, sent.secret),
    ):
        seen = Exchange(
            broadcast=Broadcast(model), update=noisy(model, batch, 0.01), clients=(0,), secret=secret
        )
        found = attack.run([seen], known)
        shares.append(float(found_examples(found.values, batch.inputs).float().mean()))
    assert shares[0] == 0 and shares[1] >= 0.31


def test_what_it_cannot_do_is_said() -> None:
    with pytest.raises(NotApplicable, match="is the last one"):
        amplification().check(nn.Sequential(nn.Flatten(), nn.Linear(64, 5)), knowing(SPEC))
    for wrong in ({"factor": 0.0}, {"factor": float("inf")}, {"read": "nothing"}):
        with pytest.raises(SpecError):
            amplification(**wrong)
