"""LOKI (Zhao et al. 2024, "LOKI: Large-scale Data Reconstruction Attack against Federated Learning through
Model Manipulation"): under a secure sum every client's examples reach columns of their own.

Each client gets the same trapped dense layer behind convolution kernels of its own (`own_columns`), so that a
layer of N neurons has N rows for *each* client, not for all of them together. Where the model's own first
layers will do, nothing is inserted; else both layers are put before the model, as in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pkgutil import resolve_name

import torch
from torch import nn

from seepage.attacks.base import Attack, pool
from seepage.attacks.sums.own_columns import Columns, own_exchange, set_apart
from seepage.attacks.traps.crafted_extraction import READERS, Reader, find_reader
from seepage.attacks.traps.quantile_traps import FIRING, QuantileCrafter
from seepage.attacks.traps.routes import Route
from seepage.attacks.traps.traps import size_of_weights
from seepage.core.errors import NotApplicable, SpecError
from seepage.core.registry import lookup
from seepage.core.types import Crafted, Exchange, Grant, Knowledge, Modality, Reconstruction
from seepage.labels import counts_if_inferred
from seepage.models.choice import choose_layer

_INSERTED = "seepage.attacks.sums.inserted"
"""Loaded where layers are inserted: the model's own need none of it."""
_MOST_GROUPS = 64
"""Models that are made for the clients of a round. Cost: memory, one model each."""
_INSERTED_GROUPS = 10
"""Groups of clients that inserted kernels keep apart, unless told. Cost: columns of the inserted layer."""

_MOST_BINS = 100_000
"""Cost: memory; each neuron reads every value of every kernel."""


@dataclass(frozen=True)
class Apart:
    """What the server remembers: the model of each group, its columns, and the way back to inputs."""

    layer: str
    models: tuple[nn.Module, ...]
    columns: tuple[Columns, ...]
    routes: tuple[Route, ...]
    notes: tuple[str, ...]
    inserted: bool


@dataclass(kw_only=True, eq=False)
class Loki(Attack):
    """Kernels of its own for every client of a sum, and traps behind them."""

    read: Reader
    firing: tuple[float, float]
    layer: str | None
    insert: bool | None
    groups: int | None
    bins: int
    batch_size: int | None

    def __post_init__(self) -> None:
        self.requires = frozenset({Grant.CRAFT_WEIGHTS, Grant.DIFFERENT_MODELS})

    def check(self, model: nn.Module, known: Knowledge) -> None:
        self._made(model, (), known)

    def craft(self, model: nn.Module, history: Sequence[Exchange], known: Knowledge) -> Crafted | None:
        if history:
            return None
        apart = self._made(model, history, known)
        return Crafted(apart.models[0], apart, turns=apart.models)

    def _made(self, model: nn.Module, history: Sequence[Exchange], known: Knowledge) -> Apart:
        if known.input.modality is Modality.TEXT:
            raise NotApplicable("kernels carry values, and texts are token ids: use trap_weights.")
        if self.insert is not None:
            return self._with(model, history, known, insert=self.insert)
        try:
            return self._with(model, history, known, insert=False)
        except NotApplicable:
            if len(known.input.shape) != 3:
                raise
            return self._with(model, history, known, insert=True)

    def _with(
        self, model: nn.Module, history: Sequence[Exchange], known: Knowledge, *, insert: bool
    ) -> Apart:
        base, layer, sigma, told = model, self.layer, None, ""
        groups = self.groups or _MOST_GROUPS
        if insert:
            groups = self.groups or _INSERTED_GROUPS
            base, layer = resolve_name(f"{_INSERTED}:inserted")(model, known, groups, self.bins)
            sigma = size_of_weights(known) / math.prod(known.input.shape)
            told = "The architecture was changed: a convolution and a dense layer were put before the model."
        crafter = QuantileCrafter(
            sigma=sigma, layer=layer, hidden=False, batch_size=self.batch_size, firing=self.firing
        )
        bait = crafter.craft(base, history, known, seed=known.seed)
        models, placed, columns = set_apart(base, bait.model, bait.secret.layer, known, most=groups)
        note = (
            f"Clients of a sum got different kernels, {len(models)} kinds: layer '{bait.secret.layer}' has "
            "columns for each. They would notice it by comparing fingerprints (the measure same_model)."
        )
        return Apart(
            bait.secret.layer,
            models,
            columns,
            tuple(one.carried.route() for one in placed),
            tuple(n for n in (told, *bait.secret.notes, note) if n),
            insert,
        )

    def reconstruct(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:
        found: list[Reconstruction] = []
        source: list[int] = []
        for number, exchange in enumerate(exchanges):
            apart = exchange.secret
            if not isinstance(apart, Apart):
                continue
            for group in sorted({client % len(apart.models) for client in exchange.clients}):
                found.append(self._read(exchange, apart, group, known))
                source.append(number)
        if not found:
            raise NotApplicable("the crafted models were never sent: play a round with this attack.")
        pooled = pool(found)
        assert pooled.source is not None
        counts = [counts_if_inferred(exchanges[number], known) for number in dict.fromkeys(source)]
        known_counts = [count for count, _ in counts if count is not None]
        return replace(
            pooled,
            source=torch.tensor(source)[pooled.source],
            label_counts=torch.stack(known_counts).sum(0) if len(known_counts) == len(counts) else None,
        ).with_notes(*dict.fromkeys(n for _, notes in counts for n in notes))

    def _read(self, exchange: Exchange, apart: Apart, group: int, known: Knowledge) -> Reconstruction:
        members = [client for client in exchange.clients if client % len(apart.models) == group]
        model = apart.models[group]
        alone = own_exchange(exchange, known, model, apart.layer, apart.columns[group], members)
        route: Route | None = apart.routes[group]
        if apart.inserted:
            alone, route = resolve_name(f"{_INSERTED}:without_kernels")(alone, route), None
        layer = choose_layer(alone.broadcast.model, known.input, apart.layer)
        read = self.read(alone, known, layer, decode=route)
        return replace(read, label_counts=None).with_notes(*apart.notes)


def loki(
    *,
    insert: bool | None = None,
    groups: int | None = None,
    layer: str | None = None,
    bins: int = 500,
    batch_size: int | None = None,
    read: str = "peel",
) -> Loki:
    """Dishonest server, secure sums: kernels of its own for every client keep their examples apart in one
    trapped layer (LOKI, Zhao et al. 2024).

    insert: put a convolution and a dense layer before the model, which CHANGES THE ARCHITECTURE. By default
    only where the model's own first layers will not do; false: never.
    groups: of clients that are kept apart; by default as many as the model has filters for, 10 if inserted.
    layer: dense layer to trap, by default the first that traps fit. bins: neurons of the inserted layer.
    batch_size: of a client; by default what the server knows of it, else 100.
    read: "peel" takes found examples away and reads what they hid; "rows" reads each row by itself.
    """
    lookup(READERS, read, "reader")
    if groups is not None and not 2 <= groups <= _MOST_GROUPS:
        raise SpecError(f"groups must lie between 2 and {_MOST_GROUPS}, not {groups}.")
    if bins < 2:
        raise SpecError(f"bins must be at least 2, not {bins}: traps need several neurons.")
    if bins > _MOST_BINS:
        raise SpecError(
            f"bins must be at most {_MOST_BINS:,}, not {bins:,}: so many neurons fill the memory."
        )
    if batch_size is not None and batch_size < 2:
        raise SpecError(f"batch_size must be at least 2, not {batch_size}: one example needs no trap.")
    return Loki(
        read=find_reader(read),
        firing=FIRING[read],
        layer=layer,
        insert=insert,
        groups=groups,
        bins=bins,
        batch_size=batch_size,
    )
