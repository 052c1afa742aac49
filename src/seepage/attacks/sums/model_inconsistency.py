"""Model inconsistency (Pasquini et al. 2022): one client's update out of a secure sum.

In a round with n clients the server sends its model to one of them and a dead one (`dead`) to all others,
whose share of the sum is exactly zero. What the secure sum shows is the one client's update, but for its
weight in the sum and for the last bias. In the next round it is another one's turn. No client can see this by
itself: they have to compare fingerprints of what they received (`seepage.guardian.fingerprint`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from seepage.attacks.base import Around, Attack, pool
from seepage.attacks.fishing.catch import inner_attack
from seepage.attacks.fishing.head import Head, find_head
from seepage.attacks.sums.dead import dead_model
from seepage.core.errors import NotApplicable
from seepage.core.types import Broadcast, Crafted, Exchange, Grant, Knowledge, Reconstruction


@dataclass(frozen=True)
class Singled:
    """Whose turn a round is."""

    victim: int


@dataclass(kw_only=True, eq=False)
class ModelInconsistency(Attack):
    """One client a round gets the model, all others a dead one."""

    inner: Attack
    """Reads each client's update."""
    layer: str | None

    def __post_init__(self) -> None:
        own = {Grant.CRAFT_WEIGHTS, Grant.DIFFERENT_MODELS, Grant.SEVERAL_ROUNDS}
        self.requires = self.inner.requires | own

    def matching_by(self, around: Around) -> Attack:
        self.inner = self.inner.matching_by(around)
        return self

    def check(self, model: nn.Module, known: Knowledge) -> None:
        head = find_head(model, known.input, self.layer)
        dead_model(model, head, known)
        self.inner.check(_without_last_bias(model, head), known)

    def craft(self, model: nn.Module, history: Sequence[Exchange], known: Knowledge) -> Crafted | None:
        met = {client for exchange in history for client in exchange.clients} or {0}
        waiting = met - {exchange.secret.victim for exchange in history}
        if not waiting:
            return None
        victim = min(waiting)
        dead = dead_model(model, find_head(model, known.input, self.layer), known)
        return Crafted(copy.deepcopy(model), Singled(victim), (victim,), dead)

    def reconstruct(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:
        aimed = [
            i
            for i, e in enumerate(exchanges)
            if isinstance(e.secret, Singled) and e.secret.victim in e.clients
        ]
        if not aimed:
            raise NotApplicable("no client was ever singled out: play at least one round with this attack.")
        head = find_head(exchanges[aimed[0]].broadcast.model, known.input, self.layer)
        pooled = pool([self.inner.run([_singled(exchanges[i], head)], known) for i in aimed])
        assert pooled.source is not None
        return replace(pooled, source=torch.tensor(aimed)[pooled.source]).with_notes(
            *_notes(exchanges, aimed)
        )


def _singled(exchange: Exchange, head: Head) -> Exchange:
    """The victim's own exchange: all others added nothing. Clients count as equally large, for a secure sum
    does not tell their sizes; of unequal ones updates are too long or too short by a factor.
    """
    clients, count = len(exchange.clients), exchange.update.num_examples
    if clients == 1:
        return exchange
    model = _without_last_bias(exchange.broadcast.model, head)
    update = replace(
        exchange.update,
        tensors={
            name: clients * t.detach() for name, t in exchange.update.tensors.items() if name != head.bias
        },
        derived=True,
        num_examples=count // clients if count is not None and count % clients == 0 else None,
    )
    victim = exchange.secret.victim
    broadcast = Broadcast(model, exchange.broadcast.round)
    return replace(exchange, broadcast=broadcast, update=update, clients=(victim,), labels=None)


def _without_last_bias(model: nn.Module, head: Head) -> nn.Module:
    """Everybody's labels are in the sum of the last biases: it is left out."""
    if head.bias is None:
        return model
    known = copy.deepcopy(model)
    known.get_parameter(head.bias).requires_grad_(False)
    return known


def _notes(exchanges: Sequence[Exchange], aimed: Sequence[int]) -> tuple[str, ...]:
    largest = max(len(exchanges[i].clients) for i in aimed)
    told = f"{len(aimed)} client(s) were singled out, one a round"
    if largest == 1:
        return (f"{told}; their updates are seen one by one anyway.",)
    return (
        f"{told}: the other {largest - 1} in the same sum got a dead model, whose update is exactly zero. "
        "They would notice it by comparing fingerprints (the measure same_model).",
    )


def model_inconsistency(
    *,
    layer: str | None = None,
    inner: str = "exact_extraction",
    inner_options: Mapping[str, Any] | None = None,
) -> ModelInconsistency:
    """Dishonest server, secure sums: all clients but one get a dead model, and the sum is that one's update
    (Pasquini et al. 2022).

    layer: the classification layer, by default the last one with an output for each class.
    inner, inner_options: the attack that reads each client's update, and its settings.
    """
    return ModelInconsistency(layer=layer, inner=inner_attack(inner, inner_options))
