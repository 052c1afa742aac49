"""Rows whose sums, or whose counts of negative weights, vary less than independent weights could.

Algorithm 1 of Boenisch et al. 2021 ties the positive half of a row to the negative one, so that all rows have
nearly the same sum; jitter on the weights does not undo this. Where each feature map has a gain of its own
(Appendix B, or normalisation folded in), some weighted sum over maps is the balanced one: the smallest
eigenvalue of the map sums' covariance finds it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from seepage.core.types import Detector
from seepage.guardian.detectors.calibrated import Reading, most_striking, weight_detector
from seepage.guardian.detectors.layers import WeightLayer, live_columns, of_kind, sampled
from seepage.guardian.detectors.pass_through import reading_input

_ROWS = 1024
"""Rows whose sums are compared. Cost: time."""
_LEAST_ROWS = 16
"""Rows of a layer that is judged. Derived: with fewer, `_BY_CHANCE` takes off more than a third of a
decade."""
_COLOURS = 3
"""Channels that a row may be divided into. Derived: red, green and blue."""
_SMALLEST = 1e-6
"""Smallest ratio that is told from 0. Derived: a sum of a thousand float32 weights is rounded to about 1e-6
of its size."""
_LEAST_HALF = 0.1
"""Share of weights with the rarer sign. Paper: the traps of Boenisch et al. 2021 have halves; a tenth leaves
room for unequal ones."""
_BY_CHANCE = 1.5
"""Over the root of the number of rows, this is taken off the score, for of few rows some weighted sum is
balanced by chance. No plateau test yet."""


def row_balance() -> Detector:
    """Weights: row sums that are more alike than independent weights can be (trap weights, jittered too)."""
    return weight_detector("row_balance", measure)


def measure(layers: Sequence[WeightLayer]) -> Reading:
    readings = []
    # Training balances rows that read features (classifiers, attention); a trap has to read the input.
    for layer in of_kind(reading_input(layers), "dense", fan_in=16, rows=_LEAST_ROWS):
        rows = sampled(layer.rows, _ROWS)
        if one_sided(rows):
            continue
        ratio = min(_balance(rows, layer.maps), _balance(rows.sign(), 1))
        words = (
            f"the row sums of '{layer.name}' vary by {ratio:.2g} of what independent weights would"
            f" ({len(rows)} rows)"
        )
        score = -math.log10(max(ratio, _SMALLEST)) - _BY_CHANCE / math.sqrt(len(rows))
        readings.append(Reading(score=score, layer=layer.name, evidence=words))
    return most_striking(
        readings, needs=f"dense layer of {_LEAST_ROWS} rows and 16 inputs that an input reaches"
    )


def one_sided(rows: Tensor) -> bool:
    """Whether most weights have one sign, as in filter banks: a trap weighs two halves against each other.

    >>> one_sided(torch.ones(3, 4)), one_sided(torch.tensor([[1.0, -1.0]]))
    (True, False)
    """
    positive, negative = int((rows > 0).sum()), int((rows < 0).sum())
    return min(positive, negative) < _LEAST_HALF * (positive + negative)


def _balance(rows: Tensor, maps: int) -> float:
    """Smallest over the ways to part the columns; 1: as independent weights."""
    colours = {_COLOURS} if rows.shape[1] % _COLOURS == 0 else set()
    live = live_columns(rows)
    ratios = [sum_variance(live, 1)] if live.shape[1] else []
    ratios += [sum_variance(rows, parts) for parts in colours | ({maps} if maps > 1 else set())]
    return min(ratios, default=1.0)


def sum_variance(rows: Tensor, parts: int) -> float:
    """Least variance of a weighted sum of part sums, over what independent entries lead to expect.

    >>> generator = torch.Generator().manual_seed(0)
    >>> honest = torch.randn(200, 60, generator=generator)
    >>> 0.5 < sum_variance(honest, 1) < 2
    True
    >>> sum_variance(honest - honest.mean(dim=1, keepdim=True), 1) < 1e-6
    True
    """
    count = len(rows)
    if count < 2 * parts:
        return 1.0  # too few rows to tell a balanced sum from one that exists by chance
    blocks = rows.reshape(count, parts, -1)
    sums, energy = blocks.sum(dim=2), blocks.square().sum(dim=2)  # (N, parts)
    used = energy.amin(dim=0) > 0
    if not bool(used.any()):
        return 1.0
    scaled = (sums[:, used] / energy[:, used].mean(dim=0).sqrt()).double()
    scaled = scaled - scaled.mean(dim=0)
    least = float(torch.linalg.eigvalsh(scaled.T @ scaled / (count - 1))[0])
    # Marchenko-Pastur: the lower edge of the spectrum that independent sums have.
    return max(0.0, least) / (1 - math.sqrt(int(used.sum()) / count)) ** 2
