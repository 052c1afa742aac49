"""Numbers that categories leave open: found by the backward signals, which lie in a span of their own.

Where two rows of a batch have the same categories, every row's numbers may be moved along their difference
without leaving the row space. But the signal d(x, y) of a true row lies in the column space of the gradient,
which few made-up numbers do: of a ReLU network those with the true row's activation pattern.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.tables.combining import SAFE, Combinations, combine
from seepage.attacks.tables.fitting import Fit
from seepage.attacks.tables.front import Front
from seepage.attacks.tables.row_space import RowSpace
from seepage.core.errors import NotApplicable

_TRIES = 100_000
"""Rows tried in one pass over all combinations. Cost: measured, 8 microseconds each at a width of 100."""
_MOST_EACH = (1, 400, 1600, 3000)
"""Of them for one combination, by the dimensions that are open; more have the last. Cost: time."""
_NEAR = 0.1
"""Share of a signal that may lie outside. Derived: one of 50 active neurons on the wrong side of its ReLU
moves 0.14 of it."""
_NEW = 0.02
"""Share of a signal that must lie outside those of rows already taken, to be another row. Derived: less than
what one neuron of 100 makes."""


_STARTS, _ROUNDS, _AROUND = 96, 24, 24
"""Best tries that are moved about, rounds of it, and tries in each. Cost: 55,000 rows at most."""
_FIRST, _SHRINK = 0.5, 0.7
"""How far numbers are moved at first, in spreads, and what of it is left after a round without success: down
to 1e-4 of a spread, where neighbouring activation patterns and smooth signals are told apart.
Derived: .5 * .7^24 = 1e-4."""
_NEWTON, _DIFFERENCE = 8, 1e-6
"""Gauss-Newton steps, and the difference of numbers that derivatives are taken with, in float64. Derived: the
root of its precision is 1.5e-8, and Newton doubles the digits with each step."""
_SOME = 3
"""Sure rows that are enough for one pass: the next has fewer open numbers. Cost: passes."""
ROUNDED = 1e-5
"""Share of a signal outside that rounding leaves. Tested: signals of true rows have 2e-7."""


_BLOCK = 20_000
"""Rows at a time. Cost: memory."""


@dataclass(frozen=True)
class Placed:
    """Rows in the span, with signals in theirs."""

    choices: Tensor
    numbers: Tensor
    labels: Tensor
    outside: Tensor
    """(k,) share of each one's signal that lies outside."""
    unit: Tensor
    """(k, N) signals at unit length."""

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, index: Tensor) -> Placed:
        return Placed(**{name: value[index] for name, value in vars(self).items()})

    def plus(self, more: Placed) -> Placed:
        return Placed(**{name: torch.cat([value, getattr(more, name)]) for name, value in vars(self).items()})


def place_all(
    space: RowSpace, front: Front, fit: Fit, *, classes: int, plausible: Tensor
) -> tuple[Placed, Combinations]:
    """Rows with signals in their space, the surest first, and the combinations of categories in the span.

    Rows that are sure are taken out of the space: what is orthogonal to their signals is a gradient of the
    others alone, in which fewer combinations lie and fewer numbers are open.
    """
    first = combined = combine(space, front)
    found = place(combined, space, front, fit, classes=classes, plausible=plausible)
    enough = max(SAFE * space.noise, ROUNDED)
    sure = found.select((found.outside <= enough).nonzero().squeeze(1))
    while 0 < len(sure) < space.rank:
        left = space.without(sure.unit, off=float(sure.outside.max()))
        try:
            combined = combine(left, front)
        except NotApplicable:
            break
        more = place(combined, left, front, fit, classes=classes, plausible=plausible, taken=sure)
        found = sure.plus(more)
        new = more.select((more.outside <= enough).nonzero().squeeze(1))
        if not len(new):
            break
        sure = found = sure.plus(new)
    return found, first


def place(
    combinations: Combinations,
    space: RowSpace,
    front: Front,
    fit: Fit,
    *,
    classes: int,
    plausible: Tensor,
    taken: Placed | None = None,
) -> Placed:
    """At most as many rows as the space has dimensions, the surest first, no two with the same signal.

    plausible: (T, J) numbers as rows of such a table may have them, in model units. taken: found before.
    """
    before = space.signals.new_zeros(0, len(space.signals)) if taken is None else taken.unit
    placed = _tried(combinations, plausible, space, front, fit, classes=classes)
    if combinations.free.shape[1] and len(placed):
        placed = _refined(placed, combinations.free, space, front, fit)
        placed = _followed(placed, combinations.free, space, front, fit)
    return placed.select(_independent(placed, space.rank, before))


def _independent(placed: Placed, most: int, before: Tensor) -> Tensor:
    """Indices of rows with signals in the space, the surest first, none a combination of those `before`."""
    near = (placed.outside <= _NEAR).nonzero().squeeze(1)
    others = torch.linalg.qr(before.T).Q
    apart, taken = placed.unit[near] - placed.unit[near] @ others @ others.T, list[int]()
    for _ in range(most):
        fresh = apart.norm(dim=1) > _NEW
        if not bool(fresh.any()):
            break
        best = int(torch.where(fresh, placed.outside[near], torch.inf).argmin())
        direction = apart[best] / apart[best].norm()
        apart = apart - (apart @ direction).unsqueeze(1) * direction
        taken.append(int(near[best]))
    return torch.tensor(taken, dtype=torch.long, device=near.device)


def _tried(
    combinations: Combinations,
    plausible: Tensor,
    space: RowSpace,
    front: Front,
    fit: Fit,
    *,
    classes: int,
) -> Placed:
    """Combinations with numbers in the span near plausible ones: those with a signal near the space."""
    free, start = combinations.free, combinations.numbers
    # of two classes both labels' signals point the same way
    labels = 1 if classes == 2 else classes
    each = min(_MOST_EACH[min(free.shape[1], len(_MOST_EACH) - 1)], len(plausible))
    each = max(1, min(each, _TRIES // max(1, labels * len(start))))
    onto = free @ torch.linalg.pinv(free)  # (J, J)
    kept: Placed | None = None
    for some in torch.arange(len(start), device=start.device).split(max(1, _BLOCK // (each * labels))):
        wanted = plausible[:each].to(start)
        numbers = start[some, None] + (wanted[None] - start[some, None]) @ onto.T  # (k, T, J)
        choices = combinations.choices[some].repeat_interleave(each * labels, dim=0)
        numbers = numbers.flatten(0, 1).repeat_interleave(labels, dim=0)
        label = torch.arange(labels, device=start.device).repeat(len(choices) // labels)
        unit, outside = fit(front.features(choices, numbers), label)
        kept = _best(Placed(choices, numbers, label, outside, unit), kept, max(_STARTS, 4 * space.rank))
    assert kept is not None
    return kept


def _best(placed: Placed, before: Placed | None, most: int) -> Placed:
    together = placed if before is None else before.plus(placed)
    return together.select(together.outside.argsort()[:most])


def _refined(placed: Placed, free: Tensor, space: RowSpace, front: Front, fit: Fit) -> Placed:
    """Numbers moved about, ever less, until some signals lie in the space as rounding allows."""
    generator = torch.Generator().manual_seed(0)
    moved = Placed(**{name: value.clone() for name, value in vars(placed).items()})
    enough = max(SAFE * space.noise, ROUNDED)
    size = torch.full_like(moved.outside, _FIRST)
    for _ in range(_ROUNDS):
        open_ = (moved.outside > enough).nonzero().squeeze(1)
        if len(open_) == 0 or len(moved) - len(open_) >= _SOME:
            break
        steps = torch.randn(len(open_), _AROUND, free.shape[1], generator=generator, dtype=torch.float64)
        tried = moved.numbers[open_, None] + (size[open_, None, None] * steps.to(free)) @ free.T
        choices, labels = (t[open_].repeat_interleave(_AROUND, dim=0) for t in (moved.choices, moved.labels))
        unit, far = fit(front.features(choices, tried.flatten(0, 1)), labels)
        best = far.reshape(-1, _AROUND).min(1)
        better = best.values < moved.outside[open_]
        size[open_] = torch.where(better, size[open_], _SHRINK * size[open_])
        at, pick = open_[better], best.indices[better]
        moved.numbers[at] = tried[better, pick]
        moved.outside[at] = best.values[better]
        moved.unit[at] = unit.reshape(len(open_), _AROUND, -1)[better, pick]
    return moved


def _followed(placed: Placed, free: Tensor, space: RowSpace, front: Front, fit: Fit) -> Placed:
    """Smooth signals followed into the space by Gauss-Newton steps, with differences for derivatives.

    Where signals do not change with the numbers, as inside an activation pattern, nothing is moved.
    """
    moved = Placed(**{name: value.clone() for name, value in vars(placed).items()})
    s, k = free.shape[1], len(placed)

    def left(numbers: Tensor, labels: Tensor, choices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        unit, far = fit(front.features(choices, numbers), labels)
        return unit - unit @ space.signals @ space.signals.T, far, unit

    for _ in range(_NEWTON):
        here, far, _ = left(moved.numbers, moved.labels, moved.choices)
        there = (moved.numbers[:, None] + _DIFFERENCE * free.T[None]).flatten(0, 1)  # (k * s, J)
        labels, choices = (t.repeat_interleave(s, dim=0) for t in (moved.labels, moved.choices))
        slope = (left(there, labels, choices)[0].reshape(k, s, -1) - here[:, None]) / _DIFFERENCE
        step = torch.linalg.pinv(slope.mT, rtol=1e-6) @ here.unsqueeze(2)  # (k, s, 1)
        numbers = moved.numbers - (free @ step).squeeze(2)
        _, far, unit = left(numbers, moved.labels, moved.choices)
        better = far < moved.outside
        if not bool(better.any()):
            break
        moved.numbers[better], moved.outside[better] = numbers[better], far[better]
        moved.unit[better] = unit[better]
    return moved
