"""Binary search by cuts of the layer before the last one (`gated_cuts`): one row at a time.

A row shows all examples but those of its own class. The first answer gives the number of each class, and the
search goes by the row of the rarest; where that class is in the batch, a second search by another row adds
its examples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from seepage.attacks.fishing.bisection import State, advance
from seepage.attacks.fishing.catch import Fished
from seepage.attacks.fishing.cuts import Interval
from seepage.attacks.fishing.gated_cuts import (
    SHARP,
    Gate,
    GatedReading,
    begin_in,
    fished_gated,
    read_gated,
)
from seepage.attacks.fishing.head import Head, sent_gradient
from seepage.attacks.fishing.shared import Hook, examples_behind
from seepage.core.types import Exchange, Knowledge

_SAME = 1e-3
"""Relative distance up to which two readings are one example, read under two rows. Derived: a thousand times
float32's rounding of a batch's sums."""


@dataclass
class Search:
    """The answers under one row."""

    row: int
    state: State
    reading: GatedReading
    """Below everybody."""
    places: list[int] = field(default_factory=list)
    """Of the state's queries among the party's answers."""

    @property
    def own(self) -> int:
        """Examples of the row's own class, which it does not show."""
        return 0 if self.reading.counts is None else round(float(self.reading.counts[self.row]))


def searches(party: Sequence[Exchange], known: Knowledge, head: Head) -> list[Search]:
    """A party's answers; each search begins with one below everybody."""
    found: list[Search] = []
    for place, exchange in enumerate(party):
        hook: Hook = exchange.secret
        gate: Gate = hook.dying
        reading = read_gated(exchange, known, head)
        epsilon = torch.finfo(exchange.update.tensors[head.weight].dtype).eps
        assert hook.theta is not None
        if math.isinf(hook.theta):
            state = begin_in(reading, hook.target, examples_behind(exchange), epsilon, gate)
            found.append(Search(hook.target, state, reading, [place]))
            continue
        last = found[-1]
        last.state = advance(
            last.state,
            reading.as_head(last.row),
            theta=hook.theta,
            direction=gate.w,
            beta=SHARP,
            epsilon=epsilon,
        )
        last.places.append(place)
    return found


def main_searches(found: Sequence[Search]) -> list[Search]:
    """Without a first answer that only showed a rarer class."""
    first = found[0]
    return list(found[1:] if len(found) > 1 and len(first.places) == 1 and first.own else found)


def next_query(
    found: Sequence[Search], cut: Callable[[State], float | None], all_of_them: bool
) -> tuple[int, float] | None:
    """The next row and place of a cut; None: no more."""
    if not found or found[-1].state.trouble or found[-1].reading.counts is None:
        return None
    last, counts = found[-1], found[-1].reading.counts.round()
    if len(found) == 1 and len(last.places) == 1 and last.own > int(counts.min()):
        return int(counts.argmin()), -math.inf
    theta = cut(last.state) if last.state.examples else None
    if theta is not None:
        return last.row, theta
    if not (all_of_them and last.own) or len(main_searches(found)) > 1:
        return None
    counts[last.row] = math.inf
    return int(counts.argmin()), -math.inf


def fished_between(
    part: Interval,
    search: Search,
    party: Sequence[Exchange],
    known: Knowledge,
    head: Head,
    gate: Gate,
    *,
    alone: nn.Module,
    label: int,
) -> Fished:
    """The difference of the answers at an interval's two cuts, which is -grad(u.f) whatever the row.

    alone: the model under which that is one example's gradient with this label.
    """
    state = search.state
    high, low = state.caught(part.high.theta), state.caught(part.low.theta)
    terms = (*high, *((-sign, place) for sign, place in low))
    names = [n for n in party[0].update.tensors if n not in (head.weight, head.bias)]
    sums = [(sign, sent_gradient(party[search.places[place]], known, names)) for sign, place in terms]
    tensors = {
        name: torch.stack([sign * s[name] for sign, s in sums]).sum(dim=0) / gate.gamma for name in names
    }
    return fished_gated(
        tensors,
        -state.features(terms),
        alone,
        head,
        gate,
        label,
        isolated=True,
        score=part.mean,
        source=search.places[max(place for _, place in terms)],
        queries=len(part.tried) + 1,
    )


def added(before: Sequence[Fished], more: Sequence[Fished], gate: Gate) -> list[Fished]:
    """What a later search found, without examples that an earlier one had already."""
    seen = [one.tensors[gate.weight].double() for one in before]
    new = []
    for one in more:
        mine = one.tensors[gate.weight].double()
        if not any(float((other - mine).norm()) <= _SAME * float(mine.norm()) for other in seen):
            new.append(one)
    return [*before, *new]
