"""A model's frozen part is in memory once, however many copies there are, and nobody writes to another's."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seepage.core.lazy import shares_memory
from seepage.core.types import Batch, Broadcast, Crafted, Exchange, LocalTraining
from seepage.engine.source import handed_out
from seepage.protocol import THREATS, client, local_update, play
from seepage.protocol.copies import beside, own_copy
from seepage.protocol.rounds import play_honest, received_model
from seepage.protocol.widening import wide_model

ROUNDS = 3


class Adapted(nn.Module):
    """A base of 200 x 200 that nobody trains, and an adapter of rank 2 beside it."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.base = nn.Linear(200, 200, dtype=dtype).requires_grad_(False)
        self.down, self.up = nn.Linear(200, 2, bias=False), nn.Linear(2, 200, bias=False)
        self.head = nn.Linear(200, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        read = inputs.to(self.base.weight.dtype)
        made = self.base(read).to(inputs) + self.up(self.down(inputs))
        out: Tensor = self.head(made.relu())
        return out


def batch(count: int = 2) -> Batch:
    return Batch(torch.rand(count, 200), torch.arange(count) % 3)


def test_what_is_not_trained_is_held_once_over_rounds_and_hand_outs() -> None:
    model, mine = Adapted(), batch()
    base = model.base.weight
    training = LocalTraining()
    played = play_honest(
        model,
        lambda number: [mine],
        steps=lambda: client(training),
        threat=THREATS["honest_but_curious"],
        rounds=ROUNDS,
        keep=2**28,
    )
    sent = [exchange.broadcast.model for exchange in played.exchanges]
    assert len({id(one) for one in sent}) == ROUNDS
    assert all(one.base.weight is base for one in sent)  # type: ignore[union-attr]
    assert len({one.up.weight.data_ptr() for one in sent}) == ROUNDS  # type: ignore[union-attr,operator]
    mine_now = [exchange.broadcast.model for exchange in handed_out(played.exchanges)]
    (held,) = {id(one.base.weight): one.base.weight for one in mine_now}.values()  # type: ignore[union-attr]
    assert held is not base and shares_memory(held)  # type: ignore[arg-type]
    kept = {exchange.broadcast.model: own_copy(exchange.broadcast.model) for exchange in played.exchanges[:1]}
    more = [exchange.broadcast.model for exchange in handed_out(played.exchanges, kept)]
    assert len({id(one.base.weight) for one in more}) == 1  # type: ignore[union-attr]


def test_a_client_s_training_and_an_attack_s_look_leave_the_memory_shared() -> None:
    copied = own_copy(Adapted())
    local_update(Broadcast(copied), batch(), LocalTraining(algorithm="fedavg", epochs=2))
    torch.linalg.svdvals(copied.base.weight)  # type: ignore[union-attr,arg-type]
    assert shares_memory(copied.base.weight)  # type: ignore[union-attr,arg-type]


def test_whoever_writes_writes_to_memory_of_his_own() -> None:
    model = Adapted()
    before = model.base.weight.clone()
    mine, other = own_copy(model), own_copy(model)
    with torch.no_grad():
        mine.base.weight.zero_()  # type: ignore[union-attr,operator]
    assert torch.equal(model.base.weight, before) and torch.equal(other.base.weight, before)  # type: ignore[union-attr,arg-type]
    with torch.no_grad():
        model.base.weight.fill_(1.0)
    assert torch.equal(other.base.weight, before)  # type: ignore[union-attr,arg-type]


def test_a_dishonest_server_may_change_what_is_frozen_and_clients_get_that() -> None:
    model = Adapted()
    honest = model.base.weight.clone()

    def craft(sent: nn.Module, history: tuple[Exchange, ...]) -> Crafted | None:
        with torch.no_grad():
            sent.base.weight[0] = 7.0  # type: ignore[union-attr,index]
        return None if history else Crafted(sent)

    seen: list[Tensor] = []

    def step(broadcast: Broadcast, given: Batch) -> object:
        seen.append(broadcast.model.base.weight.clone())  # type: ignore[union-attr,operator]
        return local_update(broadcast, given, LocalTraining())

    mine = batch()
    play(craft, own_copy(model), lambda number: [mine], step=step, threat=THREATS["malicious_server"])  # type: ignore[arg-type]
    assert bool((seen[0][0] == 7.0).all()) and torch.equal(seen[0][1:], honest[1:])
    assert torch.equal(model.base.weight, honest)
    assert received_model(own_copy(model), model).base.weight is not model.base.weight  # type: ignore[union-attr]


def test_the_server_s_wide_copy_of_a_half_precision_base_takes_no_memory_for_it() -> None:
    first = Adapted(torch.bfloat16)
    base = first.base.weight
    honest = base.clone()
    wide = wide_model(first)
    assert wide.base.weight.dtype == torch.float32 and shares_memory(base)  # type: ignore[union-attr,arg-type]
    wide(torch.rand(2, 200)).sum().backward()
    assert shares_memory(base)  # neither way widened the whole, nor wrote to it
    with torch.no_grad():
        wide.base.weight[0] = 3.0  # type: ignore[union-attr,index]
    assert torch.equal(base, honest)
    copied = wide_model(own_copy(own_copy(first)))
    assert torch.equal(copied.base.weight, honest.float())  # type: ignore[union-attr,arg-type]
    assert shares_memory(base)
    with torch.no_grad():
        base.zero_()
    assert not bool(wide_model(beside(first)).base.weight.any())  # type: ignore[union-attr,operator]
