"""Rows that are shuffled, scaled copies of their own negative half (Boenisch et al. 2021, Algorithm 1).

Sorted by size, the positive weights of such a row are s times the negative ones, entry by entry. Two halves
of an honest row are independent samples, whose sorted ratios scatter by about one over the root of their
number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from seepage.core.types import Detector
from seepage.guardian.detectors.calibrated import Reading, most_striking, weight_detector
from seepage.guardian.detectors.layers import WeightLayer, live_columns, of_kind, sampled

_ROWS = 64
"""Rows that are looked at. Cost: each is sorted."""
_ROWS_OF_MAPS = 16
"""Rows that are looked at in every feature map. Cost: each is sorted once for each map."""
_LEAST_PAIRS = 8
"""Pairs of weights of a row that is judged. Tested: test_constants_of_weight_detectors_lie_on_a_plateau."""
_LOW_SHARE = 0.1
"""The score is that of the tenth of rows that looks most like a trap: not all rows need be crafted. Tested:
test_constants_of_weight_detectors_lie_on_a_plateau."""
_UNPAIRED = 1.0
"""The spread of a row that was not crafted. Derived: what independent halves have, see `half_spreads`."""
_SMALLEST = 1e-7
"""Smallest spread that is told from 0. Derived: the rounding of float32."""
_COPIED = 0.03
"""Spread below which one half is a copy of the other. Derived: rounding to half precision leaves 5e-4 of each
weight, which is this much for a thousand pairs."""
_LEAST_COPIES = 2
"""Rows that are copies, from which on the layer is crafted. Derived: for one row the chance is below
_COPIED^8, so for two there is none."""
_ONE_SIZE = 1e-3
"""Scatter of the logarithms, below which all weights are one size, as in sign-quantised models. Tested:
test_constants_of_weight_detectors_lie_on_a_plateau."""


def trap_rows() -> Detector:
    """Weights: rows whose positive half is a scaled copy of the negative half (trap weights)."""
    return weight_detector("trap_rows", measure)


def measure(layers: Sequence[WeightLayer]) -> Reading:
    readings = []
    for layer in of_kind(layers, "dense", fan_in=2 * _LEAST_PAIRS):
        spreads = half_spreads(live_columns(sampled(layer.rows, _ROWS)))
        spread = _low_quantile(spreads)
        if layer.maps > 1:
            spread = min(spread, _spread_in_maps(sampled(layer.rows, _ROWS_OF_MAPS), layer.maps))
        copied = spreads < _COPIED
        if int(copied.sum()) >= _LEAST_COPIES:
            spread = min(spread, float(spreads[copied].median()))
        score = -math.log10(max(spread, _SMALLEST))
        words = (
            f"in '{layer.name}' the sorted positive weights of a row are a constant times the sorted "
            f"negative ones up to {spread:.2g} of what chance allows"
        )
        readings.append(Reading(score=score, layer=layer.name, evidence=words, exact=spread < _COPIED))
    return most_striking(readings, needs=f"dense layer of {2 * _LEAST_PAIRS} or more inputs")


def half_spreads(rows: Tensor) -> Tensor:
    """(N,) scatter of log(positive / |negative|), sorted, over that of log |negative|, times the root of the
    number of pairs: about 1 or more for independent halves.

    >>> half = torch.tensor([1.0, 2, 3, 5, 8, 9, 11, 13])
    >>> bool(half_spreads(torch.cat([-half, 0.7 * half.flip(0)]).unsqueeze(0)) < 1e-5)
    True
    """
    found = []
    for row in rows:
        negative, positive = (-row[row < 0]).sort().values, row[row > 0].sort().values
        pairs = min(len(negative), len(positive))
        if pairs < _LEAST_PAIRS:
            found.append(_UNPAIRED)
            continue
        # Of unequal halves the quantiles are compared, which for equal ones are the values themselves.
        below, above = _at_quantiles(negative, pairs).log(), _at_quantiles(positive, pairs).log()
        # Pruned uniform weights are all of nearly one size, hence the scatter relative to that of the sizes.
        sizes = float(below.std())
        spread = float((above - below).std()) * math.sqrt(pairs) / sizes if sizes > _ONE_SIZE else _UNPAIRED
        found.append(spread)
    return torch.tensor(found)


def _at_quantiles(ordered: Tensor, count: int) -> Tensor:
    place = torch.linspace(0, len(ordered) - 1, count, device=ordered.device, dtype=torch.float64)
    before = place.floor().long().clamp_max(len(ordered) - 1)
    after = (before + 1).clamp_max(len(ordered) - 1)
    return torch.lerp(ordered[before], ordered[after], (place - before).to(ordered))


def _spread_in_maps(rows: Tensor, maps: int) -> float:
    """The same for the columns of each feature map by itself: behind a hidden pass-through one map holds the
    trap and all others noise."""
    size = rows.shape[1] // maps
    half = size // 2
    if half < _LEAST_PAIRS:
        return _UNPAIRED
    ordered = rows.reshape(len(rows), maps, size).sort(dim=2).values
    negative, positive = ordered[..., :half], ordered[..., size - half :].flip(2)
    exact = (negative < 0).all(dim=2) & (positive > 0).all(dim=2)  # an honest row seldom has equal halves
    below, above = (-negative).clamp_min(1e-30).log(), positive.clamp_min(1e-30).log()
    sizes = below.std(dim=2)
    scatter = (above - below).std(dim=2) * math.sqrt(half) / sizes.clamp_min(_ONE_SIZE)
    spread = torch.where(exact & (sizes > _ONE_SIZE), scatter, torch.inf)  # (N, maps)
    return min(_UNPAIRED, float(spread.median(dim=0).values.min()))


def _low_quantile(spreads: Tensor) -> float:
    return float(torch.quantile(spreads, _LOW_SHARE))
