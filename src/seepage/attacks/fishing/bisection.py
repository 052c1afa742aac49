"""From a party's answers to a tree of cuts (Wen et al. 2022, Section 3.4).

Every answer is a sum over examples of (p_c - [y = c]) times something. What lies between two cuts is the
difference of two answers, in which the labels cancel: this is what is prepared here, from the classification
layer's gradients alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.attacks.fishing.cuts import WHOLE, Answer, Interval, Sharpness, Tree, grow
from seepage.attacks.fishing.head import HeadReading, class_counts, class_pattern, one_class_pattern

SAME_BATCH = 1e-3
"""Largest relative difference of two answers' class patterns that rounding accounts for. No plateau test
yet."""


_DEFENDED = (
    "The numbers of examples that the answers show are no whole numbers, so updates are not plain sums over "
    "examples: a defense (clipping, noise) or a robust aggregation stopped this attack."
)


_ALL_THERE = (
    "Clients take several local steps and every class is in the batch: a cut then needs the row of a class "
    "that is not there. class_fishing takes classes with one example."
)


@dataclass(frozen=True)
class Asked:
    """One query of a party, and what of its answer is still needed."""

    target: int
    """The row that carried the cut."""
    theta: float
    weight: float
    """Sum over examples of p_c - [y = c]."""
    features: Tensor
    """(m,) the same sum, of that times the feature."""


Sum = tuple[tuple[int, int], ...]
"""A sum of answers: (sign, place among the party's answers) each."""


@dataclass(frozen=True, kw_only=True)
class State:
    """What the answers so far amount to."""

    asked: tuple[Asked, ...]
    """In order: the upper end, the lower end if it was needed, then cuts."""
    examples: int
    counts: Tensor
    """(K,) of each class."""
    pattern: Tensor
    """What marks every later answer as one of the same batch."""
    trouble: str = ""
    """Why the attack cannot go on."""
    ends: tuple[Sum, Sum] | None = None
    """The answers below everybody and above everybody; None while the lower one is still to be asked for."""
    tree: Tree | None = None
    sharp: Sharpness | None = None
    absent: int | None = None
    """Several local steps: the row of a class that the batch lacks, which carries the cuts."""

    @property
    def one_class(self) -> bool:
        return round(float(self.counts[self.asked[0].target])) == self.examples

    @property
    def next_row(self) -> int:
        """The row that carries the cuts after the first query.

        If the whole batch is of the target class, another row is taken: what it catches is the same up to
        sign, and the batch's own class then marks every answer (`class_pattern`).
        """
        if self.absent is not None:
            return self.absent
        target, classes = self.asked[0].target, len(self.counts)
        return (target + 1) % classes if self.one_class and classes > 2 else target

    def caught(self, theta: float) -> Sum:
        """The answers that make up what a cut at theta catches."""
        assert self.ends is not None
        if math.isinf(theta):
            return self.ends[0] if theta < 0 else self.ends[1]
        return ((1, next(place for place, query in enumerate(self.asked) if query.theta == theta)),)

    def features(self, answers: Sum) -> Tensor:
        zero = torch.zeros_like(self.asked[0].features)
        return sum((sign * self.asked[place].features for sign, place in answers), start=zero)


def begin(reading: HeadReading, target: int, *, examples: int) -> State:
    """The state after the first query, above everybody."""
    counts = class_counts(reading, target, examples)
    assert counts is not None and reading.weight is not None
    whole = float((counts - counts.round()).abs().max()) <= WHOLE and float(counts.min()) > -0.5
    state = State(
        asked=(Asked(target, math.inf, reading.weight, reading.features),),
        examples=examples,
        counts=counts,
        pattern=class_pattern(reading, target),
        trouble="" if whole else _DEFENDED,
    )
    if state.next_row != target:
        mark = one_class_pattern(-reading.features, target, state.next_row, len(counts))
        return replace(state, pattern=mark)
    return state


def begin_below(
    reading: HeadReading,
    row: int,
    before: State | None,
    *,
    counts: Tensor | None,
    examples: int,
    direction: Tensor,
    beta: float,
    epsilon: float,
) -> State:
    """The state after a query below everybody, under a row that no example should be of.

    If some are, `absent` is another row, and that query is to be made again; if no class is free, trouble.
    """
    assert reading.weight is not None
    asked = (
        *(() if before is None else before.asked),
        Asked(row, -math.inf, reading.weight, reading.features),
    )
    known = torch.zeros(len(reading.others_weight)) if counts is None else counts
    free = [] if counts is None else (counts.round() == 0).nonzero().flatten().tolist()
    trouble = _DEFENDED if counts is None else "" if free else _ALL_THERE
    state = State(
        asked=asked,
        examples=examples,
        counts=known,
        pattern=class_pattern(reading, row),
        trouble=trouble,
        absent=row if row in free or not free else free[0],
    )
    if state.trouble or state.absent != row:
        return state
    ends: tuple[Sum, Sum] = (((1, len(asked) - 1),), ())
    return _one_interval(state, ends, direction=direction, beta=beta, epsilon=epsilon)


def begin_gated(
    reading: HeadReading,
    row: int,
    *,
    counts: Tensor,
    examples: int,
    direction: Tensor,
    beta: float,
    epsilon: float,
) -> State:
    """The state after a query below everybody whose row catches all but its own class (`gated_cuts`).

    The search is among the others: `examples` and `counts` of the state leave that class out.
    """
    assert reading.weight is not None
    rest = examples - float(counts.round()[row])
    # not a number, of either: no plain first step of one batch
    trouble = "" if abs(reading.weight - rest) <= WHOLE else _DEFENDED
    others = counts.clone()
    others[row] = 0.0
    state = State(
        asked=(Asked(row, -math.inf, reading.weight, reading.features),),
        examples=0 if trouble else round(rest),
        counts=others,
        pattern=class_pattern(reading, row),
        trouble=trouble,
        absent=row,
    )
    if trouble or not state.examples:
        return state
    return _one_interval(state, (((1, 0),), ()), direction=direction, beta=beta, epsilon=epsilon)


def advance(
    state: State, reading: HeadReading, *, theta: float, direction: Tensor, beta: float, epsilon: float
) -> State:
    """The state after one more answer."""
    target = state.next_row
    assert reading.weight is not None
    asked = (*state.asked, Asked(target, theta, reading.weight, reading.features))
    trouble = state.trouble or _other_batch(state, reading) or _uncounted(state, reading, theta)
    state = replace(state, asked=asked, trouble=trouble)
    if math.isinf(theta):
        return prepared(state, direction=direction, beta=beta, epsilon=epsilon)
    if state.tree is None or state.sharp is None or state.ends is None:
        return state
    below = state.examples - round(float(state.counts[target])) - reading.weight
    total = float((state.features(state.ends[0]) - reading.features) @ direction)
    return replace(state, tree=grow(state.tree, Answer(theta, below, total), state.sharp))


def prepared(state: State, *, direction: Tensor, beta: float, epsilon: float) -> State:
    """Both ends are known: all examples lie in one interval, ready to be cut."""
    if state.trouble or (not state.one_class and len(state.asked) < 2):
        return state
    ends = _ends(state.one_class, switched=state.next_row != state.asked[0].target)
    return _one_interval(state, ends, direction=direction, beta=beta, epsilon=epsilon)


def _one_interval(
    state: State, ends: tuple[Sum, Sum], *, direction: Tensor, beta: float, epsilon: float
) -> State:
    everyone = state.features(ends[0]) - state.features(ends[1])
    sharp = Sharpness(
        beta=beta, scale=float(everyone.norm()) / state.examples, examples=state.examples, epsilon=epsilon
    )
    whole = Interval(
        low=Answer(-math.inf, 0.0, 0.0),
        high=Answer(math.inf, float(state.examples), float(everyone @ direction)),
    )
    return replace(state, ends=ends, tree=Tree((whole,)), sharp=sharp)


def _ends(one_class: bool, *, switched: bool) -> tuple[Sum, Sum]:
    """Asked for, or known from the first answer.

    Everybody of the target class: nobody is caught below. Under another row: below all are caught, with
    the opposite sign to the first answer, and above nobody is.
    """
    if switched:
        return ((-1, 0),), ()
    return (() if one_class else ((1, 1),)), ((1, 0),)


def _other_batch(state: State, reading: HeadReading) -> str:
    """Cuts of different batches must not be compared: every answer carries a mark of its batch."""
    size = float(state.pattern.norm().clamp_min(state.asked[0].features.norm()))
    if float((class_pattern(reading, state.next_row) - state.pattern).norm()) <= SAME_BATCH * size:
        return ""
    return (
        "The client's batch is not the same in each query (or a defense changes each update), so cuts cannot "
        "be compared and nothing is claimed: feature_fishing and cross_device_fishing read each answer alone."
    )


def _uncounted(state: State, reading: HeadReading, theta: float) -> str:
    """The lower end must catch everybody whom the upper one did not.

    An update that was clipped to almost nothing reads as equal class counts, which may be whole numbers.
    """
    if math.isfinite(theta) or reading.weight is None:
        return ""
    expected = state.examples - float(state.counts[state.asked[0].target])
    return _DEFENDED if abs(reading.weight - expected) > WHOLE else ""
