"""Reading one cut by itself: who lies below it (Wen et al. 2022, Section 3.2).

Target examples below theta are caught with weight -1. Examples of other classes above it weigh +1
(Remark 3.3), and a single answer cannot tell one caught example from two caught and one other class's: an
example is claimed to be alone only where the answer shows that no other class is in the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from seepage.attacks.fishing.catch import Fished, head_gradient
from seepage.attacks.fishing.cuts import ALONE, CLEAR, NUDGE, WHOLE
from seepage.attacks.fishing.dying_cuts import read_dying_cut
from seepage.attacks.fishing.gated_cuts import SHARP, Gate, alone_under, fished_gated, read_gated
from seepage.attacks.fishing.head import (
    Head,
    class_pattern,
    read_head,
    sent_gradient,
    single_example_model,
)
from seepage.core.types import Exchange, Knowledge

OTHERS = 1e-3
"""Share of the caught features by which rows of other classes may differ through rounding. No plateau test
yet."""


@dataclass(frozen=True, kw_only=True)
class Tail:
    """What one cut caught."""

    theta: float
    size: float
    """Examples caught, minus those of other classes above the cut."""
    feature: Tensor
    """(m,) their mean feature; zeros where nothing was caught."""
    mean: float
    """Of w.f."""
    others: bool
    """Other classes are in the batch, or it cannot be told (two classes only)."""
    looks_single: bool
    """The size says one, clearly below the cut; but other classes may hide in it."""

    @property
    def alone(self) -> bool:
        """Exactly one example, provably."""
        return self.looks_single and not self.others


def read_tail(exchange: Exchange, known: Knowledge, head: Head, *, beta: float) -> Tail:
    """The sound stop test on one answer: |n |grad_b[c]| - 1| <= 1e-3 and beta * (theta - mean) >= 10."""
    target, theta, direction = _cut(exchange)
    if exchange.secret.dying is not None:
        return _read_dying_tail(exchange, known, head)
    reading = read_head(exchange, known, head, target)
    assert reading.weight is not None
    size = -reading.weight
    caught = abs(size) > WHOLE
    feature = reading.features / reading.weight if caught else torch.zeros_like(reading.features)
    mean = float(feature @ direction)
    epsilon = torch.finfo(exchange.update.tensors[head.weight].dtype).eps
    clear = CLEAR / beta + epsilon * float(feature.norm()) * (exchange.update.num_examples or 1)
    pattern = class_pattern(reading, target)
    unequal = float(pattern.norm()) > OTHERS * max(float(reading.features.norm()), OTHERS)
    # With theta above everybody other classes weigh nothing, wherever they lie.
    others = math.isfinite(theta) and (unequal or head.classes == 2)
    return Tail(
        theta=theta,
        size=size,
        feature=feature,
        mean=mean,
        others=others,
        looks_single=abs(size - 1) <= ALONE and theta - mean >= clear,
    )


def _read_dying_tail(exchange: Exchange, known: Knowledge, head: Head) -> Tail:
    """In several local steps everybody above the cut weighs 1, if no example is of the row's class; where the
    layer before cuts, those weigh nothing, and features are what that layer reads.
    """
    row, theta, direction = _cut(exchange)
    if isinstance(exchange.secret.dying, Gate):
        gated = read_gated(exchange, known, head)
        reading, sure = gated.as_head(row), gated.counts is not None
    else:
        read = read_dying_cut(exchange, known, head)
        reading, sure = read.head, read.lacks(row)
    size = reading.weight
    assert size is not None
    caught = size > WHOLE  # not a number: nothing is read off it
    feature = reading.features / size if caught else torch.zeros_like(reading.features)
    mean = float(feature @ direction)
    epsilon = torch.finfo(exchange.update.tensors[head.weight].dtype).eps
    rounding = epsilon * float(feature.norm()) * (exchange.update.num_examples or 1)
    return Tail(
        theta=theta,
        size=size if caught else 0.0,
        feature=feature,
        mean=mean,
        others=not sure,
        looks_single=abs(size - 1) <= ALONE and theta - mean >= CLEAR / sharpness(exchange, 1.0) + rounding,
    )


def sharpness(exchange: Exchange, beta: float) -> float:
    """Of the cut that the exchange answers: the attack's, or that of a network that dies."""
    dying = exchange.secret.dying
    return beta if dying is None else SHARP if isinstance(dying, Gate) else float(dying.gamma)


def _cut(exchange: Exchange) -> tuple[int, float, Tensor]:
    """Row, place and direction of the cut that the exchange answers, as its secret has them."""
    secret: Any = exchange.secret
    return secret.target, secret.theta, secret.direction


def fished_tail(
    tail: Tail, exchange: Exchange, known: Knowledge, head: Head, *, beta: float, source: int
) -> Fished:
    """The gradient of what a cut caught, under the model in which every input is caught."""
    target, _, direction = _cut(exchange)
    told: dict[str, Any] = {"isolated": tail.alone, "score": tail.mean, "source": source}
    queries = exchange.broadcast.round + 1
    gate = exchange.secret.dying
    if isinstance(gate, Gate):
        names = [name for name in exchange.update.tensors if name not in (head.weight, head.bias)]
        gated = {name: t / gate.gamma for name, t in sent_gradient(exchange, known, names).items()}
        alone = alone_under(exchange.broadcast.model, head, target, gate, -1.0)
        return fished_gated(gated, tail.feature, alone, head, gate, target, queries=queries, **told)
    beta = sharpness(exchange, beta)
    model: nn.Module = single_example_model(exchange.broadcast.model, head, target, direction)
    names = [name for name in exchange.update.tensors if name not in (head.weight, head.bias)]
    sums = sent_gradient(exchange, known, names)
    return Fished(
        tensors={
            **{name: tensor / beta for name, tensor in sums.items()},
            **head_gradient(tail.feature, head, target, model),
        },
        model=model,
        label=target,
        count=1,
        feature=tail.feature,
        queries=queries,
        **told,
    )


def next_tail_cut(tails: Sequence[Tail], *, beta: float) -> float | None:
    """The next cut further down, each answer read by itself: at the mean of what the lowest cut caught.

    None: one example is caught, none of the class is there, or what is left is tied.
    """
    if not tails:
        return math.inf
    last = tails[-1]
    if any(tail.looks_single for tail in tails) or (math.isinf(last.theta) and last.size < 1 - WHOLE):
        return None
    nudge = NUDGE / beta
    caught = [tail for tail in tails if tail.size >= 1 - WHOLE]
    high = min(caught, key=lambda tail: tail.theta)
    low = max((tail.theta for tail in tails if tail.size < 1 - WHOLE), default=-math.inf)
    theta = min(high.mean, high.theta - nudge)  # clearly below, in case an example lies on the cut
    if theta <= low + nudge:  # another batch than before: its lowest examples lie elsewhere
        theta = (low + high.theta) / 2 if math.isfinite(high.theta) else 2 * low - high.mean
    return theta if low + nudge / 4 < theta < high.theta - nudge / 4 else None
