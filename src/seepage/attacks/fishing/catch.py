"""What fishing brings up: gradients of single examples, handed on to any attack on a single example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from seepage.attacks import ATTACKS, Attack
from seepage.attacks.base import pool
from seepage.attacks.fishing.head import Head
from seepage.core.errors import SpecError
from seepage.core.settings import construct
from seepage.core.types import (
    Broadcast,
    Exchange,
    Grant,
    InputSpec,
    Knowledge,
    LocalTraining,
    Modality,
    Reconstruction,
    Update,
    UpdateKind,
)
from seepage.protocol import trainable


@dataclass(frozen=True, kw_only=True)
class Fished:
    """The mean gradient of `count` examples, as the server has isolated it from batches.

    It is the gradient of the cross-entropy with label `label` under `model`, whatever the examples' true
    labels: for a cutting head, -grad(w.f). Truth for scoring has to be computed in the same way.
    """

    tensors: Mapping[str, Tensor]
    model: nn.Module
    label: int
    count: int
    isolated: bool
    """The server knows from the updates alone that this is exactly one example."""
    feature: Tensor
    """(m,) what reaches the classification layer, the mean over the examples."""
    score: float | None
    """w.f, the place on the line that was cut; None where no cut was made."""
    source: int
    """Index of the exchange that settled it."""
    queries: int
    """Queries that led to it: for the ends, and the cuts of every group that it was in."""


@dataclass(frozen=True, kw_only=True)
class Catch:
    """Everything that one attack brought up."""

    fished: tuple[Fished, ...]
    queries: int
    class_counts: Tensor | None = None
    """(K,) examples of each class in the batch."""
    mixed: tuple[int, ...] = ()
    """Sizes of the groups that could not be told apart: ties, or what a bound cut off."""
    notes: tuple[str, ...] = field(default=())


def head_gradient(feature: Tensor, head: Head, label: int, like: nn.Module) -> dict[str, Tensor]:
    """The classification layer's own gradient of one caught example: (p - y) f with p_c = 0."""
    layer = like.get_submodule(head.name)
    weight = layer.get_parameter("weight")
    residual = torch.full((head.classes,), 1 / (head.classes - 1), dtype=torch.float64)
    residual[label] = -1.0
    names = {id(p): name for name, p in trainable(like).items()}
    found = {names[id(weight)]: torch.outer(residual, feature.cpu()).to(weight)}
    bias = layer.bias
    if isinstance(bias, Tensor) and id(bias) in names:
        found[names[id(bias)]] = residual.to(weight)
    return found


def inner_attack(name: str, options: Mapping[str, Any] | None) -> Attack:
    """The attack of the registry that gets each fished gradient."""
    factory = ATTACKS.find(name)
    attack: Attack = construct(factory, options or {}, f"the inner attack '{name}'")
    if attack.active:
        raise SpecError(
            f"the inner attack '{name}' crafts weights itself, but a fished gradient is already there: "
            "choose one that only reads updates, such as analytic_extraction or inverting_gradients."
        )
    return attack


def as_exchange(fished: Fished, exchanges: Sequence[Exchange]) -> Exchange:
    """The exchange that the server would have had with a client that holds just these examples."""
    device = next(iter(fished.tensors.values())).device
    origin = exchanges[fished.source]
    return Exchange(
        broadcast=Broadcast(fished.model, origin.broadcast.round),
        update=Update(
            kind=UpdateKind.GRADIENT, tensors=fished.tensors, num_examples=fished.count, derived=True
        ),
        clients=origin.clients[:1],
        labels=torch.full((fished.count,), fished.label, device=device),
    )


def invert_catch(
    catch: Catch, inner: Attack, exchanges: Sequence[Exchange], known: Knowledge
) -> Reconstruction:
    """Run the inner attack on every fished gradient and pool what it finds."""
    # Noise may count fewer than nobody in a gradient.
    catch = replace(catch, fished=tuple(f for f in catch.fished if f.count > 0))
    if not catch.fished:
        return Reconstruction(
            values=_no_examples(known.input),
            claimed=torch.zeros(0, dtype=torch.bool),
            model_units=known.normalised,
            label_counts=_whole(catch.class_counts),
            notes=(*catch.notes, "No gradient of a single example was isolated, so nothing was inverted."),
        )
    alone = replace(known, local=None if known.local is None else LocalTraining())
    found = [_vouched(inner.run([as_exchange(f, exchanges)], alone), f) for f in catch.fished]
    pooled = pool(found)
    assert pooled.source is not None
    origin = torch.tensor([f.source for f in catch.fished])
    return replace(
        pooled,
        source=origin[pooled.source],
        label_counts=_whole(catch.class_counts),
        notes=(*catch.notes, *(f"Of a fished gradient: {note}" for note in pooled.notes)),
    )


def _vouched(result: Reconstruction, fished: Fished) -> Reconstruction:
    """One gradient of one example holds one candidate; it is vouched for only if known to be alone.

    Rows that the example hardly reaches hold rounding errors of the whole batch and read as noisy copies:
    the candidate that most rows agree on is kept.
    """
    if fished.count == 1 and len(result) > 1 and result.support is not None:
        best = int(result.support.argmax())

        def only(values: Tensor | None) -> Tensor | None:
            return None if values is None else values[best : best + 1]

        result = replace(
            result,
            values=result.values[best : best + 1],
            claimed=only(result.claimed),
            confidence=only(result.confidence),
            support=only(result.support),
            source=only(result.source),
        )
    if result.claimed is None or fished.isolated:
        return result
    return replace(result, claimed=torch.zeros_like(result.claimed), if_declared=False)


def _no_examples(spec: InputSpec) -> Tensor:
    kind = torch.long if spec.modality is Modality.TEXT else torch.get_default_dtype()
    return torch.zeros(0, *spec.shape, dtype=kind)


def _whole(counts: Tensor | None) -> Tensor | None:
    return None if counts is None else counts.round().clamp_min(0).long()


def outlyingness(catch: Catch) -> tuple[Tensor, Tensor]:
    """Section 6: how far each fished example is from the middle, and the queries it took to fish it.

    Distances are |w.f - mean| in standard deviations over the fished examples. Both (k,).
    """
    scored = [f for f in catch.fished if f.isolated and f.score is not None]
    scores = torch.tensor([f.score for f in scored], dtype=torch.float64)
    queries = torch.tensor([f.queries for f in scored])
    spread = scores.std(correction=0).clamp_min(torch.finfo(scores.dtype).tiny)
    return (scores - scores.mean()).abs() / spread, queries


REQUIRED = frozenset({Grant.CRAFT_WEIGHTS, Grant.BATCH_SIZE})
