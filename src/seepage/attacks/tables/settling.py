"""Exact rows from nearly right ones: with the right signals, the gradient is linear in the rows.

G = sum_i w_i d(x_i, y_i) [x_i, 1]^T. The signals of a ReLU network depend on numbers by their activation
pattern and a common factor only, so that solving for w_i [x_i, 1] with the signals of rows that are nearly
right gives the rows; of smooth networks it is repeated. w_i n is how often a row is in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.attacks.tables.fitting import Fit, Signals
from seepage.attacks.tables.front import Front
from seepage.attacks.tables.placing import Placed
from seepage.attacks.tables.row_space import RowSpace

_ROUNDS = 40
"""Smooth networks settle in 10 to 20, ReLU networks in 2. Cost: time."""
_AS_GOOD = 1.01
"""What is left of the gradient may grow by so much from one round to the next. Derived: rounding of
float64."""
_WHOLE = 0.05
"""How far from a whole number a count may lie. Derived: a wrong label's lies anywhere."""


@dataclass(frozen=True)
class Settled:
    """Rows that explain the gradient."""

    choices: Tensor
    numbers: Tensor
    seen: Tensor
    """(k, N) what each row sent, over the number of examples."""
    error: Tensor
    """(k, J) what the rest of the gradient that they do not explain may have added to a number."""


def settle(placed: Placed, space: RowSpace, front: Front, fit: Fit) -> Settled:
    """The rows that explain the gradient with signals of their own."""
    wanted = space.gradient.to(placed.numbers)
    numbers, best, least = placed.numbers, placed.numbers, torch.inf
    for _ in range(_ROUNDS):
        solved = _solved(replace(placed, numbers=numbers), wanted, space, front, fit)
        if solved.left <= _AS_GOOD * least:  # inside an activation pattern all explain as much
            best, least = numbers, min(least, solved.left)
        elif solved.left > 2 * least or not bool(solved.numbers.isfinite().all()):
            break
        if not numbers.numel():  # categories alone
            break
        step = float((solved.numbers - numbers).abs().max())
        numbers = solved.numbers
        if step <= 1e-12 * max(1.0, float(numbers.abs().max())):
            break
    last = _solved(replace(placed, numbers=best), wanted, space, front, fit)
    # what the last step moved was not known before it
    error = torch.maximum(last.error, (last.numbers - best).abs())
    return Settled(placed.choices, last.numbers, last.seen, error)


@dataclass(frozen=True)
class _Solved:
    numbers: Tensor
    error: Tensor
    left: float
    seen: Tensor


def _solved(placed: Placed, wanted: Tensor, space: RowSpace, front: Front, fit: Fit) -> _Solved:
    """The numbers for which these signals explain the gradient."""
    features = front.features(placed.choices, placed.numbers)
    unit = fit(features, placed.labels)[0].to(wanted).T  # (N, k)
    inverse = torch.linalg.pinv(unit)  # (k, N)
    scaled = inverse @ wanted  # (k, m): w_i [x_i, 1]
    left = wanted - unit @ scaled
    read = space.extended(features)
    fixed = torch.ones(read.shape[1], dtype=torch.bool, device=read.device)
    fixed[front.number_places] = False
    weight = (scaled * read)[:, fixed].sum(1) / read[:, fixed].square().sum(1)
    weight = torch.where(weight.abs() > 0, weight, torch.finfo(weight.dtype).tiny)
    numbers = front.numbers((scaled / weight.unsqueeze(1))[:, : features.shape[1]])
    spare = max(1, len(unit) - len(placed))
    noise = (left[:, front.number_places].square().sum(0) / spare).sqrt()  # (P,)
    each = inverse.norm(dim=1) / weight.abs()  # (k,)
    error = each.unsqueeze(1) * (torch.linalg.pinv(front.slopes).abs() @ noise)
    return _Solved(numbers, error, float(left.norm()), (unit * weight).T)


def labels_of(
    settled: Settled, front: Front, signals: Signals, *, classes: int, factor: float, most: int
) -> tuple[Tensor, Tensor]:
    """(k,) each row's label, and how often it is in the batch: a whole number, which a wrong label does not
    give; 0 where none fits.

    factor: what the gradient must be multiplied by to be a sum over examples. most: how many there can be.
    """
    seen = settled.seen * factor
    features = front.features(settled.choices, settled.numbers)
    k = len(seen)
    sent = torch.stack(
        [signals(features, torch.full((k,), y, device=seen.device)).to(seen) for y in range(classes)]
    )  # (C, k, N)
    labels = torch.zeros(k, dtype=torch.long, device=seen.device)
    counts = torch.zeros_like(labels)
    ratio = (sent * seen).sum(2) / sent.square().sum(2).clamp_min(torch.finfo(seen.dtype).tiny)  # (C, k)
    off = (sent * ratio.unsqueeze(2) - seen).norm(dim=2) / seen.norm(dim=1).clamp_min(1e-300)
    for row in range(k):
        order = off[:, row] + (ratio[:, row] - ratio[:, row].round().clamp_min(1)).abs()
        label = int(order.argmin())
        count = float(ratio[label, row])
        if 0.5 < count < most + 0.5 and abs(count - round(count)) <= _WHOLE * max(1.0, count):
            labels[row], counts[row] = label, round(count)
    return labels, counts
