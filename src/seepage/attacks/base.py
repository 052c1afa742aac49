"""What every attack is: `reconstruct` from exchanges and knowledge; `craft` as well if it is dishonest.

The base class owns validation, so that an author writes one method and a wrong update never becomes a
wrong number.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn

from seepage.core.errors import DataError, NotApplicable
from seepage.core.types import Crafted, Exchange, Grant, Knowledge, Reconstruction
from seepage.protocol import trainable
from seepage.protocol.plainly import REPLAYED, ROUGH, plainly
from seepage.protocol.widening import as_sent, wide_model

Around = Callable[[Any], Any]
"""From a distance between two updates to another one (`inversion.distances.Distance`)."""


Thing = TypeVar("Thing")


class Attack(ABC):
    """One attack with its hyperparameters. Neither method is ever given a client's batch."""

    requires: frozenset[Grant] = frozenset()
    """Checked against the threat model before anything runs."""
    any_training: bool = False
    """It does not rest on updates being sums of gradients, which Adam, for one, does not leave."""
    replays: bool = False
    """It plays the clients' own kind of local training, where that cannot be read as plain SGD's."""
    confinement: str = ""
    """Where it runs, in one sentence for the report; empty: in the process of the audit."""

    def check(self, model: nn.Module, known: Knowledge) -> None:  # noqa: B027 - optional on purpose
        """Raise NotApplicable, with the reason and a remedy, if this model cannot be attacked this way."""

    def held_as(self, model: nn.Module) -> nn.Module:
        """The model as this attack reckons with it: in float32 at least."""
        return wide_model(model)

    def craft(self, model: nn.Module, history: Sequence[Exchange], known: Knowledge) -> Crafted | None:
        """The model to send next, or None when no further round is wanted. Passive attacks leave it be."""
        return None

    def matching_by(self, around: Around) -> Attack:
        """This attack, its searches comparing updates by another distance; itself where it searches nothing.

        around: makes the distance that is wanted from the one that the search has.
        """
        return self

    @property
    def active(self) -> bool:
        """A dishonest server: it crafts what it sends."""
        return Grant.CRAFT_WEIGHTS in self.requires

    @abstractmethod
    def reconstruct(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:
        """Everything this attack can say about the clients' examples."""

    @final
    def next_model(self, model: nn.Module, history: Sequence[Exchange], known: Knowledge) -> Crafted | None:
        """Validate what came back so far and craft; the model goes out in the types that clients expect."""
        newest = history[-1].broadcast.round if history else 0
        for exchange in history:
            if exchange.broadcast.round == newest:
                check_update(exchange)
        crafted = self.craft(self.held_as(model), [self._as_held(e) for e in history], known)
        return None if crafted is None else as_sent(crafted, model)

    @final
    def run(self, exchanges: Iterable[Exchange], known: Knowledge) -> Reconstruction:
        """Validate the updates, reconstruct, validate the result."""
        told: tuple[str, ...] = ()
        if not (self.any_training or known.local is None or known.local.plain):
            exchanges = _some(list(exchanges))
            try:
                exchanges, known, told = plainly(exchanges, known)
            except NotApplicable:
                if not self.replays:
                    raise
                told = (REPLAYED,)
        if known.local is not None and known.local.mixed_precision:
            told += (ROUGH,)
        clients: list[tuple[int, ...]] = []

        def checked() -> Iterator[Exchange]:
            for exchange in exchanges:
                check_update(exchange)
                clients.append(exchange.clients)
                yield self._as_held(exchange)

        return _checked(self._answer(checked(), known), clients).with_notes(*told)

    def _as_held(self, exchange: Exchange) -> Exchange:
        """With the model as the server reckons with it; the update stays as it was sent."""
        sent = exchange.broadcast.model
        held = self.held_as(sent)
        return (
            exchange if held is sent else replace(exchange, broadcast=replace(exchange.broadcast, model=held))
        )

    def _answer(self, exchanges: Iterator[Exchange], known: Knowledge) -> Reconstruction:
        return self.reconstruct(_some(list(exchanges)), known)


class PerUpdateAttack(Attack):
    """A passive attack that looks at each update by itself; candidates of all updates are pooled."""

    @abstractmethod
    def invert(self, exchange: Exchange, known: Knowledge) -> Reconstruction:
        """Candidates from one update."""

    def reconstruct(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:
        return pool([self.invert(exchange, known) for exchange in exchanges])

    def _answer(self, exchanges: Iterator[Exchange], known: Knowledge) -> Reconstruction:
        """One update after another: none is kept while the next is attacked."""
        if type(self).reconstruct is not PerUpdateAttack.reconstruct:
            return super()._answer(exchanges, known)
        return pool(_some([self.invert(exchange, known) for exchange in exchanges]))


def _some(found: list[Thing]) -> list[Thing]:
    if not found:
        raise DataError("there is no update to attack: play at least one round.")
    return found


def check_update(exchange: Exchange) -> None:
    """Names and shapes must be the model's and every value finite."""
    parameters = trainable(exchange.broadcast.model)
    tensors = exchange.update.tensors
    if absent := [name for name in parameters if name not in tensors]:
        raise DataError(
            f"the update lacks {len(absent)} of the model's parameters (first: '{absent[0]}'): "
            "the update and the model must belong together."
        )
    for name, parameter in parameters.items():
        tensor = tensors[name]
        if tensor.shape != parameter.shape:
            raise DataError(
                f"the update's '{name}' has shape {tuple(tensor.shape)} where the model has "
                f"{tuple(parameter.shape)}: the update and the model must belong together."
            )
        if tensor.numel() and not _finite(tensor):
            raise DataError(
                f"the update's '{name}' contains NaN or infinite values: the client's training diverged; "
                "lower the learning rate or check the data."
            )


def _finite(tensor: Tensor) -> bool:
    """aminmax carries NaN through and allocates nothing, where isfinite().all() needs a mask of this size."""
    return bool(torch.stack(torch.aminmax(tensor.detach())).isfinite().all())


def _checked(result: Reconstruction, clients: Sequence[tuple[int, ...]]) -> Reconstruction:
    """clients: of each exchange."""
    k = len(result)
    for field in ("claimed", "confidence", "support", "source"):
        value = getattr(result, field)
        if value is not None and value.shape != (k,):
            raise DataError(
                f"the attack returned {k} candidates but '{field}' has shape {tuple(value.shape)}: give one "
                "entry for each candidate."
            )
    if result.values.is_floating_point() and k and not _finite(result.values):
        raise DataError("the attack returned candidates with NaN or infinite values.")
    _check_source(result, clients)
    return result


def _check_source(result: Reconstruction, clients: Sequence[tuple[int, ...]]) -> None:
    """A candidate counts for the clients it was read from: guesses that fit somebody else are no leak."""
    source = result.source
    if result.shared:
        vouched = result.claimed is not None and bool(result.claimed.any())
        if source is not None or result.rows is not None or vouched:
            raise DataError(
                "the attack returned candidates that are shared by all exchanges, which have no source, were "
                "read from no rows and cannot be vouched for: leave those fields out, or set shared = False."
            )
    elif source is None:
        if len(result) and len(set(clients)) > 1:
            raise DataError(
                f"the attack does not say from which of {len(clients)} exchanges with different clients "
                "its candidates were read: give `source`, the index of each one's exchange."
            )
    elif source.is_floating_point() or source.is_complex() or source.dtype is torch.bool:
        raise DataError(
            f"the attack's `source` is {source.dtype}: give whole numbers, the exchanges' indices."
        )
    elif len(source) and (int(source.min()) < 0 or int(source.max()) >= len(clients)):
        raise DataError(
            f"the attack's `source` names exchanges {int(source.min())} to {int(source.max())}, but there "
            f"are {len(clients)}, counted from 0."
        )


def _joined(parts: Sequence[Tensor | None], join: Callable[..., Tensor] = torch.cat) -> Tensor | None:
    present = [p for p in parts if p is not None]
    return join(present) if len(present) == len(parts) else None


def pool(found: Sequence[Reconstruction]) -> Reconstruction:
    """Put the candidates of several updates together, remembering the source of each."""
    if len(found) == 1:
        return replace(found[0], source=torch.zeros(len(found[0]), dtype=torch.long))
    first = found[0]
    if any(f.space != first.space or f.model_units != first.model_units for f in found):
        raise DataError("reconstructions in different spaces cannot be pooled.")
    rows = [f.rows for f in found if f.rows is not None]
    counts = _joined([f.label_counts for f in found], torch.stack)
    words = _joined([f.words for f in found], torch.stack)
    return Reconstruction(
        values=torch.cat([f.values for f in found]),
        space=first.space,
        model_units=first.model_units,
        claimed=_joined([f.claimed for f in found]),
        confidence=_joined([f.confidence for f in found]),
        support=_joined([f.support for f in found]),
        rows=sum(rows[1:], rows[0]) if len(rows) == len(found) else None,
        source=torch.cat([torch.full((len(f),), i) for i, f in enumerate(found)]),
        label_counts=None if counts is None else counts.sum(dim=0),
        words=None if words is None else words.any(dim=0),
        complete=None if any(f.complete is None for f in found) else all(f.complete for f in found),
        if_declared=any(f.if_declared for f in found),
        notes=tuple(dict.fromkeys(note for f in found for note in f.notes)),
    )
