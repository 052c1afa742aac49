"""Whether what was read is one example each, or the mean of several that are nearly alike.

Two examples x + e and x - e of one label send nearly what two copies of x send, and so does a batch in which
every example has such a copy, next to a batch half as large. The grid of pixels does not part them where e is
a whole number of steps. Four things do:
- products: a row that one example alone activates is a product of two floating-point numbers (`products`);
- the rank of the gradient: d(x + e) differs from d(x - e), which leaves (d(x + e) - d(x - e)) ⊗ e besides,
  a direction that no mean has (`NearCopies` says whether it would be seen);
- a neuron that only one of the two fires (`half_fired`);
- the number of examples that the client declares, if it is believed.
Off a grid the declared number alone is not believed. On a grid it is: only pairs that are all an even number
of steps apart, of which the client counts each once, whose rows are not received as they were computed, and
between which no neuron lies, are taken for their means. Nothing in such an update parts them
(`test_nothing_but_a_neuron_between_two_parts_a_pair_from_its_mean`), so what rests on the number says so
(`OneEach.if_declared`). Nothing here sees the truth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

import torch
from torch import Tensor

from seepage.attacks.reading.direction_grid import LEVELS
from seepage.attacks.reading.half_fired import half_fired
from seepage.attacks.reading.near_copies import NearCopies
from seepage.attacks.reading.peeling.span import SignalSpan
from seepage.attacks.reading.products import ACCIDENT, proves, speaks_for
from seepage.attacks.reading.scale import Scale, as_declared
from seepage.models.precision import EXACT
from seepage.models.signals import BackwardSignals


@dataclass(frozen=True)
class Counted:
    """Readings that some label fits, all (k, ...)."""

    features: Tensor
    labels: Tensor
    row: Tensor
    """Where each was read."""
    on_grid: Tensor
    """bool: its values are whole numbers of grey steps."""
    lone: Tensor
    """bool: read from a row as it was received."""
    evidence: Tensor
    """That its row is a product, as `products.joint_evidence` has it; 0: none."""
    times: Tensor
    """As how many examples of its label it counts."""
    step: Tensor
    """By how much a value of it must be off to be a wrong one: a grey step, or what still counts as exact."""


@dataclass(frozen=True)
class Received:
    """What the update says besides."""

    scale: Scale | None
    expected: float | None
    """The factor that the declared number means; None: nobody declared one."""
    summed: bool
    """The loss is a sum: what one example counts does not depend on how many there are."""
    computed: torch.dtype | None
    """As `products.as_computed` has it."""
    fine: bool
    """A gradient in full precision: its rank shows a copy that fires another neuron."""
    signals: BackwardSignals
    span: Callable[[], SignalSpan]
    left: Callable[[Tensor], Tensor]
    """What rows (r,) hold, as a sum over examples, beyond the signals of the readings (r, m)."""

    @property
    def number(self) -> int | None:
        return None if self.summed or self.expected is None else round(self.expected)


@dataclass(frozen=True)
class OneEach:
    """What is known about readings (k,)."""

    single: Tensor
    """(k,) bool: one example each (or exact copies of one)."""
    if_declared: bool
    """For some of them the declared number is the reason, not the update."""


class _Grounds(Enum):
    """Why readings are one example each."""

    NONE = auto()
    NUMBER = auto()
    """It is the declared number, and the update does not speak against that."""
    UPDATE = auto()
    """Near copies would have shown, whatever was declared."""


def step_of(unit: Tensor, on_grid: Tensor) -> Tensor:
    """(k,) `Counted.step` of values of this range (k,): on a grid, the finest that is known."""
    return torch.where(on_grid, 1 / LEVELS[-1], EXACT) * unit.double()


def one_each(counted: Counted, received: Received) -> OneEach:
    """Which readings are no means of several that are nearly alike."""
    case = _Case(counted, received)
    sure, by_number = torch.zeros_like(counted.on_grid), torch.zeros_like(counted.on_grid)
    for which, grounds_of in ((counted.on_grid, _on_grid), (~counted.on_grid, _off_grid)):
        if not bool(which.any()):
            continue
        grounds = grounds_of(case)
        sure |= which & (case.proven if grounds is _Grounds.NONE else True)
        if grounds is _Grounds.NUMBER:
            by_number |= which & ~case.proven
    sure = sure & ((counted.times == 1) | case.own)
    return OneEach(sure, bool((sure & by_number).any()))


class _Case:
    """What of the evidence was looked at already: each part costs more than the one before."""

    def __init__(self, counted: Counted, received: Received) -> None:
        self.counted, self.received = counted, received
        self.declared = as_declared(received.scale, received.expected)
        self.seen = received.computed is not None and bool(counted.lone.any())
        """Whether rows show products."""
        self._near: NearCopies | None = None

    @property
    def near(self) -> NearCopies:
        if self._near is None:
            c = self.counted
            self._near = NearCopies(self.received.signals, c.features, c.labels, c.row, c.step)
        return self._near

    @property
    def evidence(self) -> Tensor:
        """(c, k) of products that copies which differ in column c would not have left; inf: refuted."""
        c, computed = self.counted, self.received.computed
        if computed is None or not self.seen:
            return torch.zeros_like(c.evidence).unsqueeze(0)
        own = torch.where(self.near.told(computed), c.evidence, 0.0)
        return torch.where(c.lone, torch.where(c.evidence > 0, torch.inf, own), 0.0)

    @property
    def own(self) -> Tensor:
        """(k,) bool: its own rows prove it."""
        return (self.evidence <= ACCIDENT).all(0)

    @property
    def proven(self) -> Tensor:
        """(k,) bool. Those that are proven show what one counts, unless they are copies and others are not:
        where some are refuted, each must be proven by itself."""
        evidence = self.evidence
        if not all(proves(each) for each in evidence):
            return torch.zeros_like(self.counted.on_grid)
        return self.own if bool(evidence.isinf().any()) else torch.ones_like(self.own)


def _on_grid(case: _Case) -> _Grounds:
    """Whether the declared number is that of the update, and neither products nor rank speak against it."""
    received, counted = case.received, case.counted
    if not case.declared:
        # Clipping changes the factor and leaves no products, but it does not change the rank. A factor that
        # is another whole number may be no clipping, but the number of means of several, of higher rank.
        number, scale = received.number, received.scale
        other = scale is not None and scale.num_examples is not None and len(counted.labels) != number
        holds = number is not None and not other and received.span().rank == number
        return _by_number(case, holds)
    if case.seen:
        evidence = counted.evidence[counted.lone]
        if speaks_for(evidence, surely=True):
            return _Grounds.UPDATE
        return _by_number(case, True) if speaks_for(evidence) else _would_show(case)
    return _by_number(case, received.number is None or received.span().rank <= received.number)


def _off_grid(case: _Case) -> _Grounds:
    """The same; and besides, near copies would have shown in the products or the rank.

    Where no row shows products, or too few to prove anything, the rank of a gradient in full precision tells,
    if any copy fires another neuron; that of a difference of weights or a cast does not. Copies that fire the
    same neurons leave no trace (with two classes their signals are parallel), so the number is the reason.
    """
    received, counted = case.received, case.counted
    if not case.declared:
        return _Grounds.NONE
    evidence = counted.evidence[counted.lone]
    if received.summed or (case.seen and speaks_for(evidence, surely=True)):
        return _Grounds.UPDATE
    rank = received.fine and 0 < received.span().rank <= round(received.expected or 0)
    if not case.seen and rank:
        return _by_number(case, True)
    if (shown := _would_show(case)) is not _Grounds.NONE:
        return shown
    # Products that pass, but are too few values to prove anything, say no less than none at all.
    return _by_number(case, rank and speaks_for(evidence))


def _by_number(case: _Case, holds: bool) -> _Grounds:
    """The declared number, unless a neuron contradicts it."""
    counted, received = case.counted, case.received
    if not holds:
        return _Grounds.NONE
    if received.summed:  # two that are nearly alike count twice in a sum, whatever was declared
        return _Grounds.UPDATE
    halved = half_fired(received.signals, counted.features, counted.labels, counted.step, received.left)
    return _Grounds.NONE if halved else _Grounds.NUMBER


def _would_show(case: _Case) -> _Grounds:
    """Whether the declared number is that of the update, and near copies would have raised its rank."""
    received = case.received
    if not case.declared or received.number is None:
        return _Grounds.NONE
    span = received.span()
    shown = 0 < span.rank <= received.number and case.near.shown(span)
    return _Grounds.UPDATE if shown else _Grounds.NONE
