"""The number that an update must be multiplied by to be a sum over its examples.

If x alone is left at row i, the observed bias gradient there is d_i(x, y) / kappa for its label y. Without
clipping kappa is the batch size; with it, one common real number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy.stats import poisson
from torch import Tensor

from seepage.core.types import Exchange, Knowledge, Update, UpdateKind

TOGETHER = 2
"""Readings that must agree to be evidence. Derived: one alone may fit by chance, and the chance that a second
one does so at the same place is as small as the window is narrow (`SAME_SCALE`)."""
SAME_SCALE = 2e-4
"""Share of each other within which ratios show the same kappa. Tested:
test_constants_of_reading_lie_on_a_plateau."""
_INTEGER, _NEAR = 2e-4, 0.02
"""How near a whole number a ratio must be to be taken for one, relative and absolute. Tested:
test_constants_of_reading_lie_on_a_plateau."""
_AROUND = 0.5
"""Width, in log units, over which the density of wrong ratios is measured. Tested:
test_constants_of_reading_lie_on_a_plateau."""
_PLAUSIBLE = 1e-2
"""Probability above which agreement by chance proves nothing. Tested:
test_constants_of_reading_lie_on_a_plateau."""
_UNEXPECTED = 1e-3
"""The same for a kappa that nobody expected (an unknown batch size, clipping). Derived: a tenth of it, for
ten places are tried."""


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


def expected_kappa(exchange: Exchange, known: Knowledge) -> float | None:
    """What the mean gradient must be multiplied by to be a sum over examples; None where nobody says."""
    if known.loss.endswith("_sum"):
        return 1.0
    n = exchange.update.num_examples
    scaled = exchange.update.kind is UpdateKind.GRADIENT or known.local is not None
    return float(n) if n is not None and scaled else None


def counts_several_times(scale: Scale | None, expected: float | None) -> bool:
    """Whether the update is larger than so many examples would make it if each were in it once.

    Then either fewer are in it than were declared, or each counts several times. Two that are nearly alike
    add up to twice their mean, to first order of their difference, which only an alphabet would show.

    >>> counts_several_times(Scale(10.0, 10, 9), 20.0), counts_several_times(Scale(215.6, None, 9), 8.0)
    (True, False)
    """
    return scale is not None and expected is not None and scale.kappa < (1 - SAME_SCALE) * expected


def as_declared(scale: Scale | None, expected: float | None) -> bool:
    """Whether the update is that of as many examples as were declared, each counted once.

    >>> as_declared(Scale(20.0, 20, 9), 20.0), as_declared(Scale(20.0, 20, 9), None)
    (True, False)
    """
    return scale is not None and expected is not None and abs(scale.kappa / expected - 1) <= SAME_SCALE


def scale_note(scale: Scale | None, expected: float | None, update: Update) -> list[str]:
    """What the common factor of an update says about the number of its examples."""
    n = update.num_examples
    if scale is None:
        return []
    if n is None:
        if scale.num_examples is not None and update.kind is UpdateKind.GRADIENT:
            return [f"The number of examples was inferred to be {scale.num_examples}."]
        return [f"The update is the sum over examples divided by {scale.kappa:.6g}."]
    return [] if expected is None else _unexpected(scale, expected, n)


def _unexpected(scale: Scale, expected: float, n: int) -> list[str]:
    """Where the factor is not that of the `n` examples that were declared."""
    if as_declared(scale, expected):
        return []
    factor = f"{expected / scale.kappa:.6g}"
    if scale.kappa < expected:
        return [
            f"The update is {factor} times as large as {n} examples would make it if each were in it once: "
            "there are copies in the batch, or fewer examples than were declared."
        ]
    scaled = f"scaled down as a whole, by {factor} (clipping, class weights)."
    if scale.num_examples is None:
        return [f"The update was {scaled}"]
    return [
        f"The update is the sum over examples divided by {scale.num_examples}, not by the {n} that were "
        f"declared: more examples are in it, or it was {scaled}"
    ]
