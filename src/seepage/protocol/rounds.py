"""Playing the protocol: rounds between one server and its clients, and what the server keeps of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.core.errors import DataError, NotApplicable
from seepage.core.types import Batch, Broadcast, Crafted, Exchange, Grant, LocalStep, Update, UpdateKind
from seepage.protocol.aggregation import Fold
from seepage.protocol.copies import beside, own_copy
from seepage.protocol.local import trainable
from seepage.protocol.played import Held, Place, Played, PlayedAgain
from seepage.protocol.threat import ThreatModel, effective_grants, missing_grants
from seepage.protocol.view import View

Craft = Callable[[nn.Module, Sequence[Exchange]], Crafted | None]
"""The server's choice of the next model from what it has seen; None: no further round wanted."""

ClientData = Callable[[int], Sequence[Batch]]
"""Round number to each client's batch in that round."""


_HOOKS = ("_hooks", "_hooks_with_kwargs", "_hooks_always_called")
"""How the attributes end that a module keeps its hooks in."""


def apply_update(model: nn.Module, update: Update, *, lr: float) -> nn.Module:
    """A copy of the model moved by an aggregate: by the delta itself, or by -lr times the gradient."""
    moved = beside(model)
    scale = 1.0 if update.kind is UpdateKind.DELTA else -lr
    with torch.no_grad():
        for name, parameter in trainable(moved).items():
            parameter.add_(update.tensors[name], alpha=scale)
        for name, buffer in moved.named_buffers():
            if update.buffers is not None and name in update.buffers:
                buffer.copy_(update.buffers[name])
    return moved


def received_model(sent: nn.Module, agreed: nn.Module) -> nn.Module:
    """What runs at a client: the agreed architecture with the weights that were sent, and nothing else.

    Where the server changed the architecture, a copy of what it sent, without its hooks; if the agreed
    model is part of that, this part runs as agreed.

    >>> agreed, sent = nn.Linear(2, 1), nn.Linear(2, 1)
    >>> _ = sent.register_forward_hook(lambda *seen: print("seen"))
    >>> received = received_model(sent, agreed)
    >>> torch.equal(received.weight, sent.weight), received(torch.ones(2)).shape
    (True, torch.Size([1]))
    """
    if _has_weights_of(sent, agreed):
        received = own_copy(agreed)
        own = received.state_dict()
        changed = {name: v for name, v in sent.state_dict().items() if not _same(v, own[name])}
        received.load_state_dict(changed, strict=False)
        return received
    received = own_copy(sent)
    for module in received.modules():
        for name in [name for name in vars(module) if name.endswith(_HOOKS)]:
            vars(module)[name].clear()
    for name, module in sent.named_modules():
        if name and _has_weights_of(module, agreed):
            received.set_submodule(name, received_model(module, agreed))
            break
    return received


def _same(one: object, other: object) -> bool:
    """Tensors that need not be written over."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor) or one.dtype != other.dtype:
        return False
    return one.device == other.device and torch.equal(one, other)


def _has_weights_of(module: nn.Module, agreed: nn.Module) -> bool:
    weights, own = (
        {name: getattr(v, "shape", None) for name, v in m.state_dict().items()} for m in (module, agreed)
    )
    return weights == own and (bool(own) or type(module) is type(agreed))


def play(
    craft: Craft | None,
    model: nn.Module,
    data: ClientData,
    *,
    step: LocalStep,
    threat: ThreatModel,
    aggregation: str = "per_client",
    fakes: int = 0,
    minimum_honest: int = 1,
    max_rounds: int = 1,
    server_lr: float = 0.1,
) -> Played:
    """Let the server craft, the clients train and the threat model filter, until the server wants no more.

    craft None: an honest server. It plays all rounds and trains on the model in between, by the protocol's
    aggregate (`per_client` means the mean), whatever the threat model lets anybody see of it.
    fakes, minimum_honest: how the server gets round a secure sum, and what clients demand; see `secure`.
    """
    view = View(threat, aggregation, fakes, minimum_honest)
    if craft is None:
        honest = _Honest(model, data, view, max_rounds, server_lr)
        return honest.played(tuple(honest.exchanges(step, {})))
    grants = effective_grants(threat, aggregation)
    exchanges: list[Exchange] = []
    held = Held()
    agreed = own_copy(model)  # before the server can touch it
    for number in range(max_rounds):
        crafted = craft(model, tuple(exchanges))
        if crafted is None:
            break
        aims = crafted.clients is not None or bool(crafted.turns)
        if aims and not (_any_of(crafted) & grants):
            raise NotApplicable(
                missing_grants(_any_of(crafted) - {Grant.CHOOSE_CLIENTS}, threat, aggregation)
            )
        batches = data(number)
        aimed_at = range(len(batches)) if crafted.clients is None else crafted.clients
        if absent := [c for c in aimed_at if not 0 <= c < len(batches)]:
            raise DataError(
                f"the server addresses client {absent[0]}, but only {len(batches)} take part: raise the "
                "protocol's number of clients, or address others."
            )
        # What a dishonest server keeps is never what clients run: a hook on it would see their examples.
        received = [Broadcast(received_model(m, agreed), number) for m in crafted.turns or (crafted.model,)]
        selected, others = aimed_at, received[0]
        if crafted.others is not None:
            selected, others = range(len(batches)), Broadcast(received_model(crafted.others, agreed), number)
        updates = (
            step(received[c % len(received)] if c in aimed_at else others, batches[c]) for c in selected
        )
        held.use({c: batches[c] for c in selected})
        exchanges += view.exchanges(
            Broadcast(crafted.model, number), updates, selected, batches, crafted.secret
        )
    return held.played(tuple(exchanges), [(e.broadcast.round, e.clients) for e in exchanges])


def _any_of(crafted: Crafted) -> frozenset[Grant]:
    """A secure sum over one targeted client would be that client's update; over several it is a sum."""
    if crafted.others is not None or crafted.turns:
        return frozenset({Grant.DIFFERENT_MODELS})
    several = {Grant.CHOOSE_CLIENTS} if len(crafted.clients or ()) > 1 else set()
    return frozenset({Grant.TARGET_CLIENT, *several})


def play_honest(
    model: nn.Module,
    data: ClientData,
    *,
    steps: Callable[[], LocalStep],
    threat: ThreatModel,
    aggregation: str = "per_client",
    fakes: int = 0,
    minimum_honest: int = 1,
    rounds: int = 1,
    server_lr: float = 0.1,
    keep: int,
) -> Played:
    """`play` with an honest server. Exchanges of more than `keep` bytes are played again whenever they are
    looked at, one after another, so that their number costs no memory.

    steps: makes the clients' work, which begins anew with each pass: same noise, same dropout.
    """
    view = View(threat, aggregation, fakes, minimum_honest)
    honest = _Honest(model, data, view, rounds, server_lr)
    size = sum(p.numel() * p.element_size() for p in trainable(model).values())
    if size * len(honest.places()) <= keep:
        return honest.played(tuple(honest.exchanges(steps(), {})))
    again = PlayedAgain(lambda models: honest.exchanges(steps(), models), honest.places())
    return honest.played(again)


@dataclass(frozen=True)
class _Honest:
    """Rounds in which the server sends what it has trained so far, to all clients."""

    model: nn.Module
    data: ClientData
    view: View
    rounds: int
    server_lr: float

    def exchanges(self, step: LocalStep, models: dict[int, nn.Module]) -> Iterator[Exchange]:
        """One after another. models: what was sent, by round, where that is known already; filled here."""
        aggregation = self.view.aggregation
        rule = "mean" if aggregation == "per_client" else aggregation
        models.setdefault(0, self.model)
        for number in range(self.rounds):
            batches, broadcast = self.data(number), Broadcast(models[number], number)
            goes_on = number + 1 < self.rounds and number + 1 not in models
            whole = Fold(rule, [len(batch) for batch in batches]) if goes_on else None
            updates = _trained(step, broadcast, batches, whole)
            yield from self.view.exchanges(broadcast, updates, range(len(batches)), batches, None)
            if whole is not None:
                models[number + 1] = apply_update(models[number], whole.result(), lr=self.server_lr)

    def places(self) -> list[Place]:
        """The round and the clients of each exchange."""
        return [
            (number, clients)
            for number in range(self.rounds)
            for clients in self.view.groups(range(len(self.data(number))))
        ]

    def played(self, exchanges: Sequence[Exchange]) -> Played:
        held = Held()
        for number in range(self.rounds):
            held.use(dict(enumerate(self.data(number))))
        return held.played(exchanges, self.places())


def _trained(
    step: LocalStep, received: Broadcast, batches: Iterable[Batch], whole: Fold | None
) -> Iterator[Update]:
    """The clients' updates, one after another, each also added to what the server trains on with."""
    for batch in batches:
        update = step(received, batch)
        if whole is not None:
            whole.add(update)
        yield update
