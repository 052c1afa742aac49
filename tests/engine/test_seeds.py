"""What clients draw cannot be drawn again from what an attack is told."""

from __future__ import annotations

import torch

from seepage.core.types import Broadcast
from seepage.engine.prepare import prepare
from seepage.engine.spec import parse_spec
from seepage.protocol import client, draw_clients

SPEC = {
    "model": "mlp",
    "data": "digits",
    "defenses": [{"name": "gaussian_noise", "sigma": 0.5}],
    "protocol": {"batch_size": 8},
}


def test_the_seed_that_an_attack_knows_draws_other_clients() -> None:
    prepared = prepare(parse_spec(SPEC))
    for seed in range(20):
        held = prepared.draw(seed)[0](0)[0].inputs
        drawn_again = draw_clients(prepared.dataset.labels, clients=1, examples_each=8, seed=seed)[0]
        guess = prepared.dataset.batch(drawn_again).inputs
        shared = (guess.flatten(1)[:, None] == held.flatten(1)).all(dim=2).any(dim=0)
        assert int(shared.sum()) <= 2  # 8 of 1797 at random


def test_the_seed_that_an_attack_knows_does_not_undo_the_noise() -> None:
    prepared = prepare(parse_spec(SPEC))
    plain = prepare(parse_spec({**SPEC, "defenses": []}))
    model, batch = prepared.model(0), prepared.draw(0)[0](0)[0]
    sent = client(prepared.local, prepared.defenses(0))(Broadcast(model), batch).tensors
    true = client(plain.local, [])(Broadcast(model), batch).tensors
    generator = torch.Generator().manual_seed(0)
    for name, tensor in sent.items():
        subtracted = tensor - 0.5 * torch.randn(tensor.shape, generator=generator)
        # Somebody else's noise adds to the variance: it cannot take anything away.
        assert float((subtracted - true[name]).square().mean()) > float((tensor - true[name]).square().mean())


def test_the_same_audit_on_the_same_data_draws_the_same_and_on_other_data_another() -> None:
    one, again = prepare(parse_spec(SPEC)), prepare(parse_spec(SPEC))
    assert torch.equal(one.draw(1)[0](0)[0].inputs, again.draw(1)[0](0)[0].inputs)
    assert one.private_seed("clients", 1) == again.private_seed("clients", 1)
    images, labels = one.dataset.inputs.clone(), one.dataset.labels
    images[0, 0, 0, 0] += 0.25
    other = prepare(parse_spec({**SPEC, "data": "arrays"}), data=(images, labels))
    assert other.private_seed("clients", 1) != one.private_seed("clients", 1)


def test_two_defenses_draw_different_noise() -> None:
    twice = {**SPEC, "defenses": [{"name": "gaussian_noise", "sigma": 1.0}, {"name": "gaussian_noise"}]}
    prepared = prepare(parse_spec(twice))
    assert prepared.private_seed("defense 0", 0) != prepared.private_seed("defense 1", 0)
