"""Which label a reading has, and by what number the observed gradient must be multiplied.

If x alone is left at row i, the observed bias gradient there is d_i(x, y) / kappa for its label y. Without
clipping kappa is the batch size; with it, one common real number. A reading of which the same x comes twice
shows the sum of two signals.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations_with_replacement

import torch
from scipy.stats import poisson
from torch import Tensor

SAME_SCALE = 2e-4
"""Ratios within this share of each other show the same kappa."""
_INTEGER, _NEAR = 2e-4, 0.02
"""How near a whole number a ratio must be to be taken for one, relative and absolute."""
_AROUND = 0.5
"""Width, in log units, over which the density of wrong ratios is measured."""
_PLAUSIBLE = 1e-2
"""Agreement that chance would produce more often than this proves nothing."""
_UNEXPECTED = 1e-3
"""The same for a kappa that nobody expected (an unknown batch size, clipping)."""
AMBIGUOUS = 5.0
_MOST_LABELS = 32
"""Copies with several labels are looked for only where label sets are few enough to try."""
_MOST_COPIES = 3


@dataclass(frozen=True)
class Scale:
    """observed * kappa = sum over examples."""

    kappa: float
    num_examples: int | None
    """The whole number it stands for, if it is one (within rounding)."""
    votes: int


def find_scale(predicted: Tensor, observed: Tensor, *, expected: float | None) -> Scale | None:
    """kappa from predictions (v, labels) for readings whose bias gradients (v,) were observed.

    The expected kappa is taken if more readings fit it than chance explains; else the real number that most
    agree on; without agreement the expected one again, with no votes for it. A reading has as many ratios
    as there are labels, and a mixture has nothing but wrong ones, so agreement counts only where it is far
    denser than the ratios around it.

    >>> d = torch.tensor([[2.0, 9.0], [-3.0, 7.0], [5.0, 1.0]])
    >>> find_scale(d, torch.tensor([0.2, -0.3, 0.1]), expected=None)
    Scale(kappa=10.0, num_examples=10, votes=3)
    """
    ratio = (predicted / observed.unsqueeze(1)).double()  # (v, labels): kappa at the right label
    usable = ratio.isfinite() & (ratio > 0)
    logs, order = ratio[usable].log().sort()
    if len(logs) == 0:
        return None if expected is None else Scale(expected, round(expected), 0)
    entry = torch.arange(len(ratio), device=ratio.device).unsqueeze(1).expand_as(ratio)[usable][order]
    if expected is not None:
        votes = _votes(entry, logs, math.log(expected) - SAME_SCALE / 2)
        if votes and _by_chance(logs, math.log(expected), votes) < _PLAUSIBLE:
            return Scale(expected, round(expected), votes)
    return _most_agreed(logs, entry) or (None if expected is None else Scale(expected, round(expected), 0))


def _most_agreed(logs: Tensor, entry: Tensor) -> Scale | None:
    spans = torch.searchsorted(logs, logs + SAME_SCALE, right=True) - torch.arange(
        len(logs), device=logs.device
    )
    starts = logs[spans.topk(min(16, len(spans))).indices].tolist()
    start = max(starts, key=lambda at: _votes(entry, logs, at))
    votes = _votes(entry, logs, start)
    kappa = math.exp(float(logs[(logs >= start) & (logs <= start + SAME_SCALE)].median()))
    whole = round(kappa)
    integer = whole >= 1 and abs(kappa - whole) <= min(_INTEGER * whole, _NEAR)
    # Every ratio was tried as the start of a window, which then has it for certain; the others must come by
    # accident. Of those windows, few happen to lie at a whole number.
    chance = len(logs) * (1.0 if votes == 1 else _by_chance(logs, start, votes - 1))
    chance *= min(1.0, 2 * _INTEGER * whole) if integer else 1.0
    if chance > _UNEXPECTED:
        return None
    return Scale(float(whole) if integer else kappa, whole if integer else None, votes)


def _votes(entry: Tensor, logs: Tensor, start: float) -> int:
    return len(entry[(logs >= start) & (logs <= start + SAME_SCALE)].unique())


def _by_chance(logs: Tensor, at: float, votes: int) -> float:
    """Probability of so many ratios in a window of width SAME_SCALE, from the density of ratios around it."""
    near = int(((logs - at).abs() <= _AROUND).sum())
    rate = max(near - votes, 1) * SAME_SCALE / (2 * _AROUND)
    return float(poisson.sf(votes - 1, rate))


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
    predicted: Tensor, observed: Tensor, tolerance: Tensor, *, copies: Tensor, clear: float = AMBIGUOUS
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
