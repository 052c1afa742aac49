"""Biases that are quantiles of their own row's response (QBI, Nowak et al. 2024).

b = -(mean . w) - z * spread(w): a function of the row. Training makes a bias follow its row's sum with a
*positive* slope (both move along the same backward signal), so only what a negative slope and a negative
level explain counts. Not all rows need be crafted: those with the largest biases for their length are looked
at by themselves as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from seepage.core.types import Detector
from seepage.guardian.detectors.calibrated import Reading, most_striking, weight_detector
from seepage.guardian.detectors.layers import WeightLayer, of_kind, sampled
from seepage.guardian.detectors.pass_through import reading_input

_ROWS = 2048
"""Rows that are fitted. Cost: least squares take time with their number."""
_LEAST_ROWS = 16
"""Rows of a layer that is judged. Derived: with fewer, `_BY_CHANCE` takes off more than a third of a
decade."""
_COLOURS = 3
"""Channels that a row may be divided into. Derived: red, green and blue."""
_SUBSETS = {1: 0.0, 2: 0.41, 4: 0.59}
"""All rows, and the half and the quarter with the largest biases: the rows halved twice, so that a crafted
quarter is seen too. With each, the score of nothing but the choice, which is taken off. Derived: the largest
half or quarter of |N(0, 1)| has a mean of 2.6 or 3.9 standard deviations, so a level explains it so well."""
_NEGLIGIBLE = 1e-3
"""Share of a row's norm below which a bias decides about nothing. Tested:
test_constants_of_weight_detectors_lie_on_a_plateau."""
_BY_CHANCE = 1.5
"""Over the root of the effective number of rows, this is taken off the score, for few rows fit anything.
Tested: test_constants_of_weight_detectors_lie_on_a_plateau."""
_EXACT = 1.5
"""Score from which on biases are computed from their rows. Derived: thirty times what is left unexplained, so
99.9 % of their variance."""
_NOTHING = -3.0
"""Smallest score. Derived: the decimal logarithm of `_NEGLIGIBLE`."""


def quantile_biases() -> Detector:
    """Weights: biases that are predicted by their rows, as quantiles of a response are (QBI)."""
    return weight_detector("quantile_biases", measure)


def measure(layers: Sequence[WeightLayer]) -> Reading:
    readings = []
    # A trap has to read the input: behind convolutions that mix, biases follow their rows by training.
    for layer in of_kind(reading_input(layers), "dense", fan_in=8, rows=_LEAST_ROWS):
        if layer.bias is None:
            continue
        biases = layer.bias.unsqueeze(1) * layer.scale
        joined = sampled(torch.cat([layer.rows, biases], dim=1), _ROWS)
        score = explained(joined[:, :-1], joined[:, -1], layer.maps)
        words = (
            f"in '{layer.name}' many biases are thresholds that their rows predict (score {score:.2f}: how "
            "well and how far from zero, against chance)"
        )
        exact = score >= _EXACT
        readings.append(Reading(score=score, layer=layer.name, evidence=words, exact=exact))
    return most_striking(readings, needs=f"dense layer with {_LEAST_ROWS} biases that an input reaches")


def explained(rows: Tensor, bias: Tensor, maps: int) -> float:
    """The most that any subset of rows, with any way to part the columns, shows."""
    norm = rows.norm(dim=1)
    alive = norm > 0
    if int(alive.sum()) < _LEAST_ROWS:
        return _NOTHING
    rows, bias, norm = rows[alive], bias[alive].double(), norm[alive].double()
    parts = {1} | ({_COLOURS} if rows.shape[1] % _COLOURS == 0 else set()) | {maps}
    target = bias / norm
    order = target.abs().argsort(descending=True)
    found = [_NOTHING]
    for part in parts:
        sums = rows.reshape(len(rows), part, -1).sum(dim=2).double() / norm.unsqueeze(1)  # (N, parts)
        for share, by_choice in _SUBSETS.items():
            far = order[: len(order) // share]
            alone = _BY_CHANCE / math.sqrt(effective_rows(rows[far]))
            found.append(_threshold_like(target[far], sums[far]) - by_choice - alone)
    return max(_NOTHING, *found)


def effective_rows(rows: Tensor) -> float:
    """How many independent rows say as much as these: n / (1 + (n - 1) c) for a mean cosine of c (Kish 1965).

    >>> effective_rows(torch.eye(4)), effective_rows(torch.ones(4, 4))
    (4.0, 1.0)
    """
    count = len(rows)
    total = torch.nn.functional.normalize(rows.double(), dim=1).sum(dim=0)
    cosine = max(0.0, (float(total @ total) - count) / max(1, count * (count - 1)))
    return count / (1 + (count - 1) * cosine)


def _threshold_like(target: Tensor, sums: Tensor) -> float:
    """log10 of explained over unexplained size of biases (n,), plus half that of their size, below 1.

    The size counts because honest biases that follow their rows by chance are small ones.
    """
    count = len(target)
    design = torch.cat([torch.ones_like(sums[:, :1]), sums[:, sums.abs().amax(dim=0) > 0]], dim=1)
    size = float(target.square().mean().sqrt())
    if count < max(_LEAST_ROWS, 2 * design.shape[1]) or size < _NEGLIGIBLE:
        return _NOTHING
    fit = torch.linalg.lstsq(design, target.unsqueeze(1)).solution.squeeze(1)
    left = float((target - design @ fit).square().sum() / (count - design.shape[1]))
    # Only thresholds count: a level below zero, and slopes against the row.
    against = design @ fit.clamp_max(0)
    made = float(against.square().mean()) - design.shape[1] / count * left
    if made <= max(1e-4 * left, _NEGLIGIBLE**2 * size**2):  # an exact fit, but of no thresholds
        return _NOTHING
    how_well = min(4.0, 0.5 * math.log10(made / max(left, 1e-12 * made)))
    how_far = 0.25 * math.log10(min(1.0, made))
    return how_well + how_far
