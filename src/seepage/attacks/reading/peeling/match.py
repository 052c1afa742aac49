"""Which label's signal is the bias gradient that was received at a row.

A reading of which the same x comes twice shows the sum of two signals.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from seepage.attacks.reading.peeling.tolerances import SURE

_MOST_LABELS = 32
"""Copies with several labels are looked for up to so many labels. Cost: 6,512 sets of two or three of
them."""
_MOST_COPIES = 3
"""Copies of one example that are told apart. Cost: one more multiplies the sets of labels by ten."""


@dataclass(frozen=True)
class Match:
    """Labels for each reading: one, or several where copies of the same example fit best."""

    labels: list[tuple[int, ...]]
    """Empty where no label fits."""
    mismatch: Tensor
    """(k,) |predicted - observed| over the largest signal any label gives."""
    largest: Tensor
    """(k,) that signal."""


def match_labels(
    predicted: Tensor, observed: Tensor, tolerance: Tensor, *, copies: Tensor, clear: float = SURE
) -> Match:
    """The label (or labels, within the tolerance `copies`) whose signals (k, labels) sum to `observed` (k,).

    clear: the second-best label must fit worse by this factor.

    Sets of labels are many and one of them comes near by chance: `copies` must be tight, 0 forbids them.

    >>> d = torch.tensor([[1.0, -3.0], [1.0, -3.0]])
    >>> tolerance = torch.full((2,), 1e-3)
    >>> match_labels(d, torch.tensor([-3.0, -2.0]), tolerance, copies=tolerance).labels
    [(1,), (0, 1)]
    """
    scale = predicted.abs().amax(1)  # (k,)
    fires = scale > 0
    distance = (predicted - observed.unsqueeze(1)).abs() / scale.unsqueeze(1)  # (k, labels)
    distance = distance.nan_to_num(nan=torch.inf)
    best, label = distance.min(1)
    ok = (best <= tolerance) & _clear(distance, best, clear) & (observed != 0)
    labels: list[tuple[int, ...]] = [(int(y),) if fits else () for y, fits in zip(label, ok, strict=True)]
    if predicted.shape[1] > _MOST_LABELS:
        return Match(labels, best, scale)
    for j in ((copies > 0) & ~ok & fires & (observed != 0)).nonzero().squeeze(1).tolist():
        found = _several(predicted[j], observed[j], scale[j], float(copies[j]))
        if found is not None:
            labels[j], best[j] = found
    return Match(labels, best, scale)


def _clear(distance: Tensor, best: Tensor, factor: float) -> Tensor:
    if distance.shape[1] == 1:
        return torch.ones_like(best, dtype=torch.bool)
    second = distance.topk(2, dim=1, largest=False).values[:, 1]
    return second >= factor * best


def label_sets(labels: int) -> int:
    """How many sets of labels are tried for copies.

    >>> label_sets(2)       # 00 01 11, 000 001 011 111
    7
    """
    return sum(math.comb(labels + copies - 1, copies) for copies in range(2, _MOST_COPIES + 1))


def _several(
    predicted: Tensor, observed: Tensor, scale: Tensor, tolerance: float
) -> tuple[tuple[int, ...], Tensor] | None:
    """Two, else three copies of one example."""
    for copies in range(2, _MOST_COPIES + 1):
        sets = list(combinations_with_replacement(range(len(predicted)), copies))
        sums = predicted[torch.tensor(sets, device=predicted.device)].sum(1)
        distance = (sums - observed).abs() / scale
        best = int(distance.argmin())
        if float(distance[best]) <= tolerance:
            return sets[best], distance[best]
    return None
