"""Playing the protocol: rounds between one server and its clients, and what the server keeps of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from seepage.errors import DataError, NotApplicable
from seepage.federation.aggregation import aggregate
from seepage.federation.local import trainable
from seepage.federation.secure import groups_with_fakes, without_fakes
from seepage.federation.threat import ThreatModel, effective_grants, missing_grants, sees_each_update
from seepage.types import Batch, Broadcast, Crafted, Exchange, Grant, LocalStep, Update, UpdateKind

Craft = Callable[[nn.Module, Sequence[Exchange]], Crafted | None]
"""The server's choice of the next model from what it has seen; None: no further round wanted."""

ClientData = Callable[[int], Sequence[Batch]]
"""Round number to each client's batch in that round."""


_HOOKS = ("_hooks", "_hooks_with_kwargs", "_hooks_always_called")
"""How the attributes end that a module keeps its hooks in."""


@dataclass(frozen=True)
class Played:
    """The server's side (`exchanges`) and, apart from it, the truth that only scoring may see."""

    exchanges: tuple[Exchange, ...]
    truth: Batch
    truth_clients: Tensor
    """(n,) which client holds each example of `truth`."""
    behind: tuple[Tensor, ...]
    """For each exchange the rows of `truth` that its clients trained on in its round, ascending."""
    rounds: int


def apply_update(model: nn.Module, update: Update, *, lr: float) -> nn.Module:
    """A copy of the model moved by an aggregate: by the delta itself, or by -lr times the gradient."""
    moved = copy.deepcopy(model)
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
        received = copy.deepcopy(agreed)
        received.load_state_dict(sent.state_dict())
        return received
    received = copy.deepcopy(sent)
    for module in received.modules():
        for name in [name for name in vars(module) if name.endswith(_HOOKS)]:
            vars(module)[name].clear()
    for name, module in sent.named_modules():
        if name and _has_weights_of(module, agreed):
            received.set_submodule(name, received_model(module, agreed))
            break
    return received


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
    grants = effective_grants(threat, aggregation)
    exchanges: list[Exchange] = []
    truth: dict[int, list[Batch]] = {}
    used: list[dict[int, int]] = []  # round, client -> which of the client's batches
    number, trained = 0, model
    agreed = model if craft is None else copy.deepcopy(model)  # before the server can touch it
    while number < max_rounds:
        crafted = Crafted(trained) if craft is None else craft(model, tuple(exchanges))
        if crafted is None:
            break
        if crafted.clients is not None and Grant.TARGET_CLIENT not in grants:
            # A secure sum over one targeted client would be that client's update.
            raise NotApplicable(missing_grants(frozenset({Grant.TARGET_CLIENT}), threat, aggregation))
        batches = data(number)
        selected = range(len(batches)) if crafted.clients is None else crafted.clients
        if absent := [c for c in selected if not 0 <= c < len(batches)]:
            raise DataError(
                f"the server addresses client {absent[0]}, but only {len(batches)} take part: raise the "
                "protocol's number of clients, or address others."
            )
        broadcast = Broadcast(crafted.model, number)
        # What a dishonest server keeps is never what clients run: a hook on it would see their examples.
        received = broadcast if craft is None else Broadcast(received_model(crafted.model, agreed), number)
        updates = {c: step(received, batches[c]) for c in selected}
        used.append({c: _remember(truth.setdefault(c, []), batches[c]) for c in selected})
        sums = _sums(updates, aggregation, fakes, minimum_honest)
        exchanges += _view(broadcast, updates, sums, batches, threat, aggregation, grants, crafted)
        number += 1
        if craft is None and number < max_rounds:
            rule = "mean" if aggregation == "per_client" else aggregation
            trained = apply_update(trained, aggregate(list(updates.values()), rule), lr=server_lr)
    if not exchanges:
        raise DataError("no round was played: the attack asked for none, or the threat model allows none.")
    clients = [c for c, kept in truth.items() for batch in kept for _ in range(len(batch))]
    places = _places(truth)
    return Played(
        exchanges=tuple(exchanges),
        truth=Batch.concat([batch for kept in truth.values() for batch in kept]),
        truth_clients=torch.tensor(clients),
        behind=tuple(
            torch.cat([places[c, used[e.broadcast.round][c]] for c in e.clients]).sort().values
            for e in exchanges
        ),
        rounds=number,
    )


def _remember(kept: list[Batch], batch: Batch) -> int:
    """Which of the client's batches this is. One that it trains on again adds no new truth."""
    for place, known in enumerate(kept):
        if known is batch:
            return place
    kept.append(batch)
    return len(kept) - 1


def _places(truth: Mapping[int, Sequence[Batch]]) -> dict[tuple[int, int], Tensor]:
    """Client and number of its batch to the rows of that batch when all are put together."""
    keys = [(c, number) for c, kept in truth.items() for number in range(len(kept))]
    sizes = [len(batch) for kept in truth.values() for batch in kept]
    return dict(zip(keys, torch.arange(sum(sizes)).split(sizes), strict=True))


def _view(
    broadcast: Broadcast,
    updates: dict[int, Update],
    sums: Callable[[], list[tuple[Update, tuple[int, ...]]]],
    batches: Sequence[Batch],
    threat: ThreatModel,
    aggregation: str,
    grants: frozenset[Grant],
    crafted: Crafted,
) -> list[Exchange]:
    """What this server keeps of one round: single updates or one aggregate, minus what it is not told."""

    def exchange(update: Update, clients: tuple[int, ...]) -> Exchange:
        labels = torch.cat([batches[c].labels for c in clients])
        return Exchange(
            broadcast=broadcast,
            update=replace(
                update,
                num_examples=update.num_examples if Grant.BATCH_SIZE in grants else None,
                buffers=update.buffers if Grant.BUFFERS in grants else None,
            ),
            clients=clients,
            labels=labels if Grant.LABELS in grants else None,
            secret=crafted.secret,
        )

    if sees_each_update(threat, aggregation):
        return [exchange(update, (c,)) for c, update in updates.items()]
    return [exchange(update, clients) for update, clients in sums()]


def _sums(
    updates: dict[int, Update], aggregation: str, fakes: int, minimum_honest: int
) -> Callable[[], list[tuple[Update, tuple[int, ...]]]]:
    """Aggregates with the clients in them: one, or as many as fakes let the server ask for."""

    def of(clients: tuple[int, ...]) -> list[Update]:
        return [updates[c] for c in clients]

    def found() -> list[tuple[Update, tuple[int, ...]]]:
        if aggregation != "secure_sum":
            return [(aggregate(list(updates.values()), aggregation), tuple(updates))]
        groups = groups_with_fakes(tuple(updates), minimum_honest) if fakes else [tuple(updates)]
        return [
            (without_fakes(of(group), fakes=fakes, minimum_honest=minimum_honest), group) for group in groups
        ]

    return found
