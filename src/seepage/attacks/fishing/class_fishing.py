"""Class fishing (Wen et al. 2022, Section 3.1): one class's gradient out of a batch of many.

The other classes' logits are raised so far that their examples are fitted perfectly and send no gradient.
What is left is the mean gradient of the target class: of one example, where it is alone in its class.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from seepage.attacks.fishing.catch import Catch, Fished, head_gradient, inner_attack
from seepage.attacks.fishing.cuts import ALONE, WHOLE
from seepage.attacks.fishing.head import (
    Head,
    HeadReading,
    class_counts,
    class_head,
    find_head,
    read_head,
    sent_gradient,
)
from seepage.attacks.fishing.shared import (
    Fishing,
    Hook,
    aggregate_note,
    check_target,
    examples_behind,
    hooked,
)
from seepage.core.errors import SpecError
from seepage.core.types import Crafted, Exchange, Grant, Knowledge


@dataclass(kw_only=True, eq=False)
class ClassFishing(Fishing):
    """One query for each class that holds few enough examples; the first query tells all class counts."""

    target_class: int | None
    alpha: float
    most: int

    @property
    def needs(self) -> frozenset[Grant]:
        return super().needs if self.target_class is None else frozenset()

    def query_bound(self, examples: int, *, classes: int, bias: bool = True) -> int:
        """Most queries for a batch of this size, known before the first; without a bias all classes."""
        if self.target_class is not None:
            return 1
        return min(classes, 1 + examples) if bias else classes

    def craft(self, model: nn.Module, history: Sequence[Exchange], known: Knowledge) -> Crafted | None:
        head = find_head(model, known.input, self.layer)
        target = self._next_class(history, known, head)
        if target is None:
            return None
        return self.send(class_head(model, head, target, alpha=self.alpha), Hook(target=target))

    def _next_class(self, history: Sequence[Exchange], known: Knowledge, head: Head) -> int | None:
        if not history:
            return check_target(self.target_class or 0, head)
        if self.target_class is not None:
            return None
        if head.bias is None:  # no counts to be read: every class is asked for
            asked = len({e.broadcast.round for e in history})
            return asked if asked < head.classes else None
        done = {e.secret.target for e in history}
        wanted: set[int] = set()
        for exchange in history:
            if exchange.broadcast.round == history[0].broadcast.round:
                counts = self._counts(exchange, known, head).round()
                wanted |= set(((counts >= 1) & (counts <= self.most)).nonzero().flatten().tolist())
        return min(wanted - done, default=None)

    def _counts(self, exchange: Exchange, known: Knowledge, head: Head) -> torch.Tensor:
        reading = read_head(exchange, known, head, exchange.secret.target, from_others=False)
        counts = class_counts(reading, exchange.secret.target, examples_behind(exchange))
        assert counts is not None
        return counts

    def fish(self, exchanges: Sequence[Exchange], known: Knowledge) -> Catch:
        index = hooked(exchanges)
        first = exchanges[index[0]]
        head = find_head(first.broadcast.model, known.input, self.layer)
        fished: list[Fished] = []
        notes: list[str] = [*aggregate_note(first)]
        mixed: list[int] = []
        for i in index:
            found, size, note = self._read(exchanges[i], known, head, i)
            fished += found
            mixed += [size] if size > self.most else []
            notes += note
        rounds = {exchanges[i].broadcast.round for i in index}
        return Catch(
            fished=tuple(fished),
            queries=len(rounds),
            class_counts=self._all_counts(exchanges, index, known, head),
            mixed=tuple(mixed),
            notes=tuple(dict.fromkeys(notes)),
        )

    def _all_counts(
        self, exchanges: Sequence[Exchange], index: Sequence[int], known: Knowledge, head: Head
    ) -> torch.Tensor | None:
        """Over all clients of the first round."""
        if head.bias is None:
            return None
        start = exchanges[index[0]].broadcast.round
        asked = [exchanges[i] for i in index if exchanges[i].broadcast.round == start]
        return torch.stack([self._counts(e, known, head) for e in asked]).sum(dim=0)

    def _read(
        self, exchange: Exchange, known: Knowledge, head: Head, source: int
    ) -> tuple[list[Fished], int, list[str]]:
        """What one answer shows: a gradient, the number of examples in it, and what stands in the way."""
        target: int = exchange.secret.target
        reading = read_head(exchange, known, head, target, from_others=False)
        if reading.weight is None:
            return self._without_bias(exchange, known, head, reading, source)
        size = -reading.weight
        counts = self._counts(exchange, known, head)
        # All classes' counts, not only this one's: an update clipped to almost nothing reads as none of it.
        if float((counts - counts.round()).abs().max()) > WHOLE:
            note = (
                f"Class {target}: the class counts that the update shows are no whole numbers (this one: "
                f"{size:.3f}), so a defense changed it or alpha is too small; nothing was fished."
            )
            return [], 0, [note]
        if round(size) == 0:
            return [], 0, [f"Class {target}: no example of it is in the batch."]
        if round(size) > self.most:
            note = (
                f"Class {target}: {round(size)} examples share it, and class fishing cannot tell them apart; "
                "binary_fishing can."
            )
            return [], round(size), [note]
        found = _fished(exchange, known, head, reading.features / reading.weight, round(size), source)
        alone = replace(found, isolated=abs(size - 1) <= ALONE)
        return [alone], round(size), [f"Class {target}: {round(size)} example(s) fished with one query."]

    def _without_bias(
        self, exchange: Exchange, known: Knowledge, head: Head, reading: HeadReading, source: int
    ) -> tuple[list[Fished], int, list[str]]:
        target: int = exchange.secret.target
        note = (
            f"The layer '{head.name}' has no bias: a class is still fished, but how many examples it holds "
            "cannot be counted, so a fished gradient may be a mixture and none is claimed to be one example."
        )
        if float(reading.features.norm()) <= WHOLE:
            return [], 0, [note, f"Class {target}: no example of it is in the batch."]
        return [_fished(exchange, known, head, -reading.features, 1, source)], 1, [note]


def _fished(
    exchange: Exchange, known: Knowledge, head: Head, feature: torch.Tensor, size: int, source: int
) -> Fished:
    """The class's mean gradient. The other rows of the layer itself hold all examples: they are rebuilt."""
    model, target = exchange.broadcast.model, exchange.secret.target
    whole = {name: t / size for name, t in sent_gradient(exchange, known).items()}
    return Fished(
        tensors={**whole, **head_gradient(feature, head, target, model)},
        model=model,
        label=target,
        count=size,
        isolated=False,
        feature=feature,
        score=None,
        source=source,
        queries=exchange.broadcast.round + 1,
    )


def class_fishing(
    *,
    target_class: int | None = None,
    alpha: float = 1000.0,
    most: int = 1,
    layer: str | None = None,
    client: int | None = None,
    inner: str = "analytic_extraction",
    inner_options: Mapping[str, Any] | None = None,
) -> ClassFishing:
    """Dishonest server: one class's gradient out of any batch, exact where a class has one example
    (Wen et al. 2022).

    target_class: the class to fish; by default every class that the first query shows to hold few enough.
    alpha: bias of the other classes; must exceed every logit of the target class by far (about 50).
    most: classes with more examples than this are left alone, as their gradients are mixtures.
    layer: the classification layer, by default the last one with an output for each class.
    client: send crafted models to this client only.
    inner, inner_options: the attack that inverts each fished gradient, and its settings.
    """
    if not (alpha > 0 and math.isfinite(alpha)):
        raise SpecError(f"alpha must be positive, not {alpha}: 1000 is the paper's choice.")
    if most < 1:
        raise SpecError(f"most must be at least 1, not {most}.")
    return ClassFishing(
        layer=layer,
        client=client,
        inner=inner_attack(inner, inner_options),
        target_class=target_class,
        alpha=alpha,
        most=most,
    )
