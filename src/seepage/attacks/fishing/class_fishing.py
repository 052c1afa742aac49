"""Class fishing (Wen et al. 2022, Section 3.1): one class's gradient out of a batch of many.

The target's logit is lowered so far that the other classes' examples send no gradient through the layers
behind. What is left is the mean gradient of the target class: of one example, where it is alone in its class.
Where clients take several local steps, see `dying`.
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
from seepage.attacks.fishing.dying import (
    dying_model,
    fished_in_first_step,
    plain_steps,
    read_caught,
    takes_several_steps,
)
from seepage.attacks.fishing.head import (
    Head,
    HeadReading,
    class_counts,
    class_head,
    find_head,
    read_head,
    sent_gradient,
)
from seepage.attacks.fishing.loudness import USUAL_ALPHA, loudness
from seepage.attacks.fishing.purified import purified
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

_ROUGHLY_WHOLE = 0.4
"""The same where other rows keep some of their energy and every example has some probability of each class.
Derived: half a count would read as the next number, and a tenth is left for noise."""


@dataclass(kw_only=True, eq=False)
class ClassFishing(Fishing):
    """One query for each class that holds few enough examples; the first query tells all class counts."""

    target_class: int | None
    alpha: float | None
    most: int
    keep: float = 0.0
    """Share of the layer's energy outside the target's row; with some, nothing is exact or claimed."""

    @property
    def whole(self) -> float:
        """How far from whole numbers the class counts may lie."""
        return WHOLE if self.keep == 0 else _ROUGHLY_WHOLE

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
        several = takes_several_steps(known.local)
        if several and not self.keep:
            crafted, dying = dying_model(model, head, target, known)
            return self.send(crafted, Hook(target=target, dying=dying))
        alpha, loud = (self.alpha, 1.0) if self.alpha else loudness(model, head, target, known)
        crafted = class_head(model, head, target, alpha=alpha, loud=loud, keep=self.keep)
        return self.send(crafted, Hook(target=target, loud=loud, mean_of_steps=several))

    def _next_class(self, history: Sequence[Exchange], known: Knowledge, head: Head) -> int | None:
        if not history:
            return check_target(self.target_class or 0, head)
        if self.target_class is not None:
            return None
        dying = takes_several_steps(known.local) and not self.keep
        if head.bias is None or dying:  # no counts: every class is asked for
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
        reading = read_head(exchange, known, head, exchange.secret.target)
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
        secret = exchanges[index[0]].secret
        if head.bias is None or secret.dying is not None or secret.mean_of_steps:
            return None
        start = exchanges[index[0]].broadcast.round
        asked = [exchanges[i] for i in index if exchanges[i].broadcast.round == start]
        return torch.stack([self._counts(e, known, head) for e in asked]).sum(dim=0)

    def _read(
        self, exchange: Exchange, known: Knowledge, head: Head, source: int
    ) -> tuple[list[Fished], int, list[str]]:
        """What one answer shows: a gradient, the number of examples in it, and what stands in the way."""
        target: int = exchange.secret.target
        if exchange.secret.dying is not None:
            return self._after_several_steps(exchange, known, head, source)
        reading = read_head(exchange, known, head, target)
        if reading.weight is None:
            return self._without_bias(exchange, known, head, reading, source)
        size = -reading.weight
        counts = self._counts(exchange, known, head)
        # All classes' counts, not only this one's: an update clipped to almost nothing reads as none of it.
        if float((counts - counts.round()).abs().max()) > self.whole:
            note = (
                f"Class {target}: the class counts that the update shows are no whole numbers (this one: "
                f"{size:.3f}), so a defense changed it, local steps moved the head too far, or a logit of "
                f"the class reaches alpha = {self._alpha(exchange, head):g} (raise it then): nothing fished."
            )
            return [], 0, [note]
        if round(size) == 0:
            moved = ", or local steps moved the head too far" if exchange.secret.mean_of_steps else ""
            return [], 0, [f"Class {target}: no example of it is in the batch{moved}."]
        if round(size) > self.most:
            note = (
                f"Class {target}: {round(size)} examples share it, and class fishing cannot tell them apart; "
                "binary_fishing can."
            )
            return [], round(size), [note]
        found = _fished(exchange, known, head, reading.features / reading.weight, round(size), source)
        if self.keep:
            found = replace(found, tensors=purified(found.tensors, found.model, known.input, head))
        alone = replace(found, isolated=self.keep == 0 and abs(size - 1) <= ALONE)
        return [alone], round(size), [f"Class {target}: {round(size)} example(s) fished with one query."]

    def _after_several_steps(
        self, exchange: Exchange, known: Knowledge, head: Head, source: int
    ) -> tuple[list[Fished], int, list[str]]:
        """The gradient of the first local step that caught anybody (`dying`)."""
        target: int = exchange.secret.target
        examples_behind(exchange)
        count, size = read_caught(exchange, known, exchange.secret.dying)
        if count is None:
            note = (
                f"Class {target}: the layer before the classifier did not die in one local step of whole "
                "examples (a defense changed the update, or some of its units were never active)."
            )
            return [], 0, [f"{note[:-1]}; nothing was fished."]
        if count == 0:
            return [], 0, [f"Class {target}: no example of it was caught in any local step."]
        if count > self.most:
            note = f"Class {target}: {count} examples share it in the first local step that holds any."
            return [], count, [note]
        found = fished_in_first_step(exchange, known, head, count=count, size=size, source=source)
        told = f"Class {target}: {count} example(s) fished out of the first local step that holds any."
        return [found], count, [told]

    def check_steps(self, model: nn.Module, known: Knowledge, head: Head) -> None:
        if takes_several_steps(known.local):
            if self.keep:
                plain_steps(known, head)
            else:
                dying_model(model, head, self.target_class or 0, known)

    def _alpha(self, exchange: Exchange, head: Head) -> float:
        assert head.bias is not None
        return -float(exchange.broadcast.model.get_parameter(head.bias).detach()[exchange.secret.target])

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
    target, loud = exchange.secret.target, exchange.secret.loud
    model = exchange.broadcast.model
    if loud != 1.0:  # the gradient as the model's own row would have made it
        model = class_head(model, head, target, alpha=USUAL_ALPHA, loud=1 / loud)
    whole = {name: t / (size * loud) for name, t in sent_gradient(exchange, known).items()}
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
    alpha: float | None = None,
    keep: float = 0.0,
    most: int = 1,
    layer: str | None = None,
    client: int | None = None,
    inner: str = "analytic_extraction",
    inner_options: Mapping[str, Any] | None = None,
) -> ClassFishing:
    """Dishonest server: one class's gradient out of any batch, exact where a class has one example
    (Wen et al. 2022).

    target_class: the class to fish; by default every class that the first query shows to hold few enough.
    alpha: how far the target class's bias lies below the others'; must exceed its logits by far (about 50).
    By default the paper's 1000 where clients send gradients. Where they send weight deltas it follows from
    their learning rate, and the target's row is made as loud as the rounding of deltas asks for.
    keep: share of the layer's energy that the other classes' rows keep between them. With some the head looks
        honest, single examples are fished approximately and none is claimed (`moderate_fishing`).
    most: classes with more examples than this are left alone, as their gradients are mixtures.
    layer: the classification layer, by default the last one with an output for each class.
    client: send crafted models to this client only.
    inner, inner_options: the attack that inverts each fished gradient, and its settings.
    """
    if alpha is not None and not (alpha > 0 and math.isfinite(alpha)):
        raise SpecError(f"alpha must be positive, not {alpha}: 1000 is the paper's choice.")
    if not 0 <= keep < 1:
        raise SpecError(f"keep must be at least 0 and below 1, not {keep}: it is a share of the energy.")
    if most < 1:
        raise SpecError(f"most must be at least 1, not {most}.")
    return ClassFishing(
        layer=layer,
        client=client,
        inner=inner_attack(inner, inner_options),
        target_class=target_class,
        alpha=alpha,
        most=most,
        keep=keep,
    )


def moderate_fishing(
    *,
    target_class: int | None = None,
    gap: float = 3.0,
    keep: float = 0.08,
    layer: str | None = None,
    client: int | None = None,
    inner: str = "analytic_extraction",
    inner_options: Mapping[str, Any] | None = None,
) -> ClassFishing:
    """Dishonest server, hard to see: class fishing by so little that the classifier looks honest; one
    example of a class outweighs all others together. Of several local steps it reads the mean.

    target_class: the class to fish; by default every class that the first query shows to hold one example.
    gap: of the other classes' biases above the target's.
    keep: share of the layer's energy that the other classes' rows keep between them.
    layer: the classification layer, by default the last one with an output for each class.
    client: send crafted models to this client only.
    inner, inner_options: the attack that inverts each fished gradient, and its settings.
    """
    if not 0 < keep < 1:
        raise SpecError(f"keep must lie between 0 and 1, not {keep}; class_fishing keeps nothing.")
    return class_fishing(
        target_class=target_class, alpha=gap, keep=keep, layer=layer, client=client, inner=inner,
        inner_options=inner_options,
    )  # fmt: skip
