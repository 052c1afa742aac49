"""Slow drift: where it ends, how it gets there, and that it trains on the way."""

from __future__ import annotations

import pytest
import torch

from seepage.attacks.traps.crafted_extraction import Secret
from seepage.attacks.traps.shifted_rows import shifted_rows
from seepage.attacks.traps.slow_drift import slow_drift
from seepage.core.errors import NotApplicable, SpecError
from seepage.core.types import LocalTraining, Verdict
from seepage.guardian import guard
from seepage.protocol import apply_update

from .helpers import attack_clients, dense_net, found_examples, image_batch, image_spec, knowing

SPEC = image_spec((1, 8, 8))
PUBLIC = image_batch(SPEC, 300, seed=5)
TOWARD = {"batch_size": 40, "share": 0.2}


def test_the_way_is_done_in_equal_parts_on_top_of_honest_training() -> None:
    """Each model sent is the last one, trained, and the same difference to the crafted model over T."""
    net, batch = dense_net(SPEC, 60), image_batch(SPEC, 40, seed=9)
    local = LocalTraining(lr=0.05)
    known = knowing(SPEC, auxiliary=PUBLIC, local=local)
    attack = slow_drift(steps=4, toward_options=TOWARD, read="rows")
    _, played = attack_clients(attack, net, [batch], known)
    target = shifted_rows(**TOWARD).crafter.craft(net, (), known, seed=0).model
    assert [e.broadcast.round for e in played.exchanges] == [0, 1, 2, 3]
    expected = net
    for exchange in played.exchanges:
        nudged = {
            n: p + (target.get_parameter(n) - net.get_parameter(n)) / 4
            for n, p in expected.named_parameters()
        }
        for name, parameter in exchange.broadcast.model.named_parameters():
            assert torch.allclose(parameter, nudged[name], atol=1e-6)
        expected = apply_update(exchange.broadcast.model, exchange.update, lr=0.05)
    assert [isinstance(e.secret, Secret) for e in played.exchanges] == [False, False, False, True]


def test_it_reads_what_the_crafted_model_reads_and_no_round_stands_out() -> None:
    net, batch = dense_net(SPEC, 400), image_batch(SPEC, 40, seed=9)
    known = knowing(SPEC, auxiliary=PUBLIC)
    found, played = attack_clients(slow_drift(toward_options=TOWARD, read="rows"), net, [batch], known)
    at_once, _ = attack_clients(shifted_rows(**TOWARD, read="rows"), net, [batch], known)
    drifted = int(found_examples(found.values, batch.inputs).sum())
    assert drifted >= 0.8 * int(found_examples(at_once.values, batch.inputs).sum()) > 0
    models = [e.broadcast.model for e in played.exchanges]
    for number in range(3, len(models)):
        assert guard(models[number], history=models[:number], sample=batch).verdict is Verdict.CLEAN


def test_what_it_cannot_do_is_said() -> None:
    with pytest.raises(NotApplicable, match="auxiliary_data"):
        slow_drift().check(dense_net(SPEC, 20), knowing(SPEC))
    for wrong in (
        {"steps": 1},
        {"toward": "imprint"},
        {"toward_options": {"shares": 1}},
        {"toward_options": {"rounds": [2]}},
        {"read": "nothing"},
    ):
        with pytest.raises(SpecError):
            slow_drift(**wrong)
