"""What attacks with crafted weights share: when and to whom the crafted model goes, and reading the answers.

An attack of this family is a crafter, which makes the model to send and a small secret, and a reader, which
extracts from the updates that come back. In rounds that are not attacked the server is honest, so that its
model still learns (Boenisch et al. 2021, Section 10.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import Protocol

import torch
from torch import nn

from seepage.attacks.base import Attack, pool
from seepage.attacks.traps.merging import merge_repeats
from seepage.attacks.traps.scale_tuning import Trial
from seepage.core.errors import NotApplicable, SpecError
from seepage.core.registry import lookup
from seepage.core.types import Crafted, Exchange, Grant, Knowledge, LocalTraining, Reconstruction
from seepage.models.choice import choose_layer
from seepage.models.gradients import Decode
from seepage.models.layers import LinearLayer
from seepage.protocol import aggregate, apply_update


@dataclass(frozen=True, kw_only=True)
class Secret:
    """What the server remembers of a crafted model."""

    layer: str
    decode: Decode | None = None
    """Undoes what crafted layers do to the input on its way to `layer`."""
    scale: float | None = None
    tried: tuple[Trial, ...] = ()
    """What earlier rounds showed about other scales."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bait:
    """A crafter's product."""

    model: nn.Module
    secret: Secret


class Crafter(Protocol):
    """Makes the model to send. `history` holds the crafted exchanges only, oldest first."""

    def check(self, model: nn.Module, known: Knowledge) -> None: ...

    def craft(
        self, model: nn.Module, history: Sequence[Exchange], known: Knowledge, *, seed: int
    ) -> Bait: ...


class Reader(Protocol):
    """Extracts from one update: `read_layer`, or one that peels."""

    def __call__(
        self, exchange: Exchange, known: Knowledge, layer: LinearLayer, *, decode: Decode | None = None
    ) -> Reconstruction: ...


READERS = {
    "rows": "seepage.attacks.reading.analytic_extraction:read_layer",
    "bare": "seepage.attacks.reading.analytic_extraction:read_bare",
    "peel": "seepage.attacks.reading.exact_extraction:peel",
}
"""rows: what single gradient rows show. bare: the same as the papers read them, without labels, without
claims, and without reading a mixture of texts as its nearest tokens. peel: each example that was found is
taken away from the gradient, which lays others bare; single rows add the rest (`exact_extraction`)."""


def find_reader(name: str) -> Reader:
    """The reader of that name, loaded when a user asks for it.

    >>> find_reader("peel").__name__
    'peel'
    """
    reader: Reader = resolve_name(lookup(READERS, name, "reader"))
    return reader


class CraftedExtraction(Attack):
    """A crafter and a reader, with a schedule.

    read: a name from READERS.
    rounds: numbers of the rounds in which the crafted model is sent; the server is honest in the others.
    clients: who gets it; None: everybody who is selected.
    """

    def __init__(
        self,
        crafter: Crafter,
        *,
        read: str = "rows",
        rounds: Sequence[int] = (0,),
        clients: Sequence[int] | None = None,
        requires: frozenset[Grant] = frozenset(),
    ) -> None:
        self.rounds, self.clients = _checked(rounds, clients)
        self.crafter, self.read = crafter, find_reader(read)
        self.requires = requires | {Grant.CRAFT_WEIGHTS}
        if self.rounds[-1] > 0:
            self.requires |= {Grant.SEVERAL_ROUNDS}
        if clients is not None:
            self.requires |= {Grant.TARGET_CLIENT}

    def check(self, model: nn.Module, known: Knowledge) -> None:
        self.crafter.check(model, known)

    def craft(self, model: nn.Module, history: Sequence[Exchange], known: Knowledge) -> Crafted | None:
        number = 1 + max((e.broadcast.round for e in history), default=-1)
        if number > self.rounds[-1]:
            return None
        current = _honest_model(model, history, known)
        if number not in self.rounds:
            return Crafted(current)
        crafted = [e for e in history if isinstance(e.secret, Secret)]
        # One seed for each round, so that fresh traps catch what the last ones missed.
        bait = self.crafter.craft(current, crafted, known, seed=known.seed * 10_007 + number)
        return Crafted(bait.model, bait.secret, self.clients)

    def reconstruct(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:
        index = [i for i, e in enumerate(exchanges) if isinstance(e.secret, Secret)]
        if not index:
            raise NotApplicable(
                f"the crafted model was never sent: it was planned for round(s) {list(self.rounds)}, but "
                "fewer were played; set rounds = [0] or allow more rounds."
            )
        pooled = pool([read_bait(exchanges[i], known, self.read) for i in index])
        assert pooled.source is not None
        pooled = replace(pooled, source=torch.tensor(index)[pooled.source])
        if len({exchanges[i].broadcast.round for i in index}) == 1:
            return pooled
        return _over_rounds(pooled, exchanges)


def read_bait(exchange: Exchange, known: Knowledge, read: Reader) -> Reconstruction:
    """Read one answer to a crafted model with the help of its secret."""
    secret: Secret = exchange.secret
    layer = choose_layer(exchange.broadcast.model, known.input, secret.layer)
    return read(exchange, known, layer, decode=secret.decode).with_notes(*secret.notes)


def _over_rounds(pooled: Reconstruction, exchanges: Sequence[Exchange]) -> Reconstruction:
    """A client may train on the same examples again: they count once, and labels cannot be added up."""
    assert pooled.source is not None
    merged = merge_repeats(pooled, [exchanges[i].clients for i in pooled.source.tolist()])
    note = "Labels of several rounds are not added up, for a client may hold the same examples in each."
    return replace(merged, label_counts=None).with_notes(note)


def _honest_model(model: nn.Module, history: Sequence[Exchange], known: Knowledge) -> nn.Module:
    """The model as honest rounds left it; what came back from crafted models is not trained on."""
    honest = [e for e in history if not isinstance(e.secret, Secret)]
    if not honest:
        return model
    newest = max(e.broadcast.round for e in honest)
    last = [e for e in honest if e.broadcast.round == newest]
    update = last[0].update if len(last) == 1 else aggregate([e.update for e in last], "mean")
    lr = (known.local or LocalTraining()).lr
    return apply_update(last[0].broadcast.model, update, lr=lr)


def _checked(
    rounds: Sequence[int], clients: Sequence[int] | None
) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    if not rounds or min(rounds) < 0:
        raise SpecError(
            f"rounds = {list(rounds)} names no round to attack: give round numbers from 0 on, e.g. [0]."
        )
    if clients is not None and (not clients or min(clients) < 0):
        raise SpecError(
            f"clients = {list(clients)} names nobody: give client numbers from 0 on, or leave it out."
        )
    return tuple(sorted(set(rounds))), None if clients is None else tuple(clients)


def expected_batch(history: Sequence[Exchange], known: Knowledge, given: int | None, fallback: int) -> int:
    """Examples behind one update, as far as the server can know before it sees one."""
    if given is not None:
        return given
    seen = [e.update.num_examples for e in history if e.update.num_examples is not None]
    if seen:
        return seen[-1]
    if known.local is not None and known.local.batch_size is not None:
        return known.local.batch_size
    return fallback
