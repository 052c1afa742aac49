"""Where the exchanges of a cell come from. An attack and its scores are the same for every source.

A source also has the truth behind its exchanges (`Played`), which goes to matching and scoring alone: an
attack gets what `handed_out` makes of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from seepage.core.types import Batch, Broadcast, Exchange, LocalStep, LocalTraining, Update
from seepage.data import Dataset
from seepage.engine.prepared import Prepared
from seepage.protocol import Played, client, longest, play
from seepage.protocol.copies import Frozen, own_copy
from seepage.protocol.played import PlayedAgain
from seepage.protocol.rounds import ClientData, Craft, play_honest

KEPT = 2**28
"""Bytes of honest exchanges that are kept for the cells of a seed; more are played again for each cell."""


class Source(Protocol):
    """The deployment of one point under one seed."""

    @property
    def data(self) -> Dataset:
        """What the examples are, in the units that the model is fed."""

    @property
    def public(self) -> Batch | None:
        """Examples that no client holds."""

    @property
    def model(self) -> nn.Module:
        """The model that an honest server starts from. It belongs to the source: others get copies."""

    @property
    def local(self) -> LocalTraining | None:
        """What clients do; None where that is not known."""

    @property
    def scored(self) -> bool:
        """The truth is there. Without it nothing is scored, and an attack's claims are all there is."""

    def play(self, craft: Craft | None) -> Played:
        """The rounds with this server; None: an honest one. Each call begins anew."""


@dataclass(frozen=True)
class Simulation:
    """Clients that are played here, on the data of the specification."""

    prepared: Prepared
    seed: int

    @cached_property
    def data(self) -> Dataset:
        return self.prepared.data(self.seed)

    @cached_property
    def model(self) -> nn.Module:
        return self.prepared.model(self.seed)

    @property
    def public(self) -> Batch | None:
        return self._drawn[1]

    @property
    def local(self) -> LocalTraining | None:
        return self.prepared.local

    @property
    def scored(self) -> bool:
        return True

    @cached_property
    def _drawn(self) -> tuple[ClientData, Batch | None]:
        return self.prepared.draw(self.seed)

    def play(self, craft: Craft | None) -> Played:
        prepared, protocol = self.prepared, self.prepared.spec.protocol
        seen: dict[str, Any] = {
            "threat": prepared.threat,
            "aggregation": protocol.aggregation,
            "fakes": protocol.fakes,
            "minimum_honest": protocol.minimum_honest,
            "server_lr": prepared.local.lr,
        }
        private = prepared.private_seed("local training", self.seed)  # for dropout, for one
        torch.manual_seed(private)

        def step() -> LocalStep:
            return client(prepared.local, prepared.defenses(self.seed))

        def steps() -> LocalStep:
            return own_stream(step(), private, prepared.device)

        model, batches = self.model, self._drawn[0]
        if craft is None:
            played = play_honest(model, batches, steps=steps, rounds=protocol.rounds, keep=KEPT, **seen)
        else:
            rounds = prepared.threat.rounds
            played = play(craft, own_copy(model), batches, step=step(), max_rounds=rounds, **seen)
        return played if protocol.attacked is None else longest(played, protocol.attacked)


def own_stream(step: LocalStep, seed: int, device: torch.device) -> LocalStep:
    """The same work with a random stream that begins with `seed` and goes on from call to call.

    >>> from seepage.core.types import Broadcast
    >>> draw = own_stream(lambda broadcast, batch: torch.rand(1).item(), 7, torch.device("cpu"))
    >>> first, _ = draw(None, None), torch.rand(5)
    >>> _ = torch.manual_seed(7)
    >>> [first, draw(None, None)] == torch.rand(2).tolist()
    True
    """
    devices = [device] if device.type == "cuda" else []
    states: list[Tensor] = []

    def drawing(broadcast: Broadcast, batch: Batch) -> Update:
        with torch.random.fork_rng(devices):
            if not states:
                torch.manual_seed(seed)
            else:
                torch.set_rng_state(states[0])
                for one, state in zip(devices, states[1:], strict=True):
                    torch.cuda.set_rng_state(state, one)
            update = step(broadcast, batch)
            states[:] = [torch.get_rng_state(), *(torch.cuda.get_rng_state(one) for one in devices)]
        return update

    return drawing


def handed_out(
    exchanges: Iterable[Exchange], models: Mapping[nn.Module, nn.Module] | None = None
) -> Iterator[Exchange]:
    """The exchanges as one attack gets them: copies, which it may write to, for others read them after it.

    models: copies of models that the attack has already. What is frozen in all rounds is held once.

    >>> from seepage.core.types import Broadcast, Update, UpdateKind
    >>> update = Update(kind=UpdateKind.GRADIENT, tensors={"weight": torch.zeros(1, 1)})
    >>> kept = Exchange(broadcast=Broadcast(nn.Linear(1, 1)), update=update, clients=(0,))
    >>> (own,) = handed_out([kept])
    >>> own.update.tensors["weight"].add_(1).item(), kept.update.tensors["weight"].item()
    (1.0, 0.0)
    """
    own = dict(models or {})
    frozen: Frozen = {}
    for sent, copied in own.items():
        pairs = zip(sent.parameters(), copied.parameters(), strict=True)
        frozen |= {id(there): here for there, here in pairs if not there.requires_grad}
    for exchange in exchanges:
        sent, update = exchange.broadcast.model, exchange.update
        if sent not in own:
            own[sent] = own_copy(sent, frozen=frozen)
        broadcast = replace(exchange.broadcast, model=own[sent])
        if isinstance(exchanges, PlayedAgain):  # nobody else has these updates
            yield replace(exchange, broadcast=broadcast)
            continue
        yield replace(
            exchange,
            broadcast=broadcast,
            update=replace(
                update,
                tensors=_own(update.tensors),
                buffers=None if update.buffers is None else _own(update.buffers),
            ),
            labels=None if exchange.labels is None else exchange.labels.clone(),
        )


def _own(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
