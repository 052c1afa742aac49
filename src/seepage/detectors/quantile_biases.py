"""Biases that are quantiles of their own row's response (QBI, Nowak et al. 2024).

b = -(mean . w) - z * spread(w): a function of the row. Training makes a bias follow its row's sum with a
*positive* slope (both move along the same backward signal), so only what a negative slope and a negative
level explain counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from seepage.detectors.calibrated import Reading, most_striking, weight_detector
from seepage.detectors.layers import WeightLayer, of_kind, sampled
from seepage.types import Detector

_ROWS = 2048
_LEAST_ROWS = 16
_COLOURS = 3
_NEGLIGIBLE = 1e-3
"""Of the row's norm: a smaller bias decides about nothing."""


def quantile_biases() -> Detector:
    """Weights: biases that are predicted by their rows, as quantiles of a response are (QBI)."""
    return weight_detector("quantile_biases", measure)


def measure(layers: Sequence[WeightLayer]) -> Reading:
    readings = []
    for layer in of_kind(layers, "dense", fan_in=8, rows=_LEAST_ROWS):
        if layer.bias is None:
            continue
        joined = sampled(torch.cat([layer.rows, layer.bias.unsqueeze(1)], dim=1), _ROWS)
        score = explained(joined[:, :-1], joined[:, -1], layer.maps)
        words = (
            f"in '{layer.name}' what rows predict of their biases, as thresholds, is {10**score:.2g} times "
            "what they leave open"
        )
        readings.append(Reading(score=score, layer=layer.name, evidence=words))
    return most_striking(readings, needs=f"dense layer with {_LEAST_ROWS} biases")


def explained(rows: Tensor, bias: Tensor, maps: int) -> float:
    """log10 of explained over unexplained size of the biases, for the best way to part the columns."""
    parts = {1} | ({_COLOURS} if rows.shape[1] % _COLOURS == 0 else set()) | {maps}
    rows, bias = rows.double(), bias.double()
    # Not all rows need be crafted: those with the largest thresholds are looked at by themselves as well.
    reach = bias.abs() / rows.norm(dim=1).clamp_min(1e-12)
    far = reach.argsort(descending=True)[: len(rows) // 2]
    return max(_explained(rows[i], bias[i], p) for p in parts for i in (slice(None), far))


def _explained(rows: Tensor, bias: Tensor, parts: int) -> float:
    norm = rows.norm(dim=1)
    alive = norm > 0
    rows, bias, norm = rows[alive], bias[alive], norm[alive]
    count = len(bias)
    size = float((bias / norm).square().mean().sqrt()) if count else 0.0
    if count < 2 * (parts + 1) or size < _NEGLIGIBLE:
        return -2.0
    sums = rows.reshape(count, parts, -1).sum(dim=2)  # (N, parts)
    used = sums.abs().amax(dim=0) > 0
    design = torch.cat([norm.unsqueeze(1), sums[:, used]], dim=1) / norm.unsqueeze(1)  # level 1, then sums
    target = bias / norm
    fit = torch.linalg.lstsq(design, target.unsqueeze(1)).solution.squeeze(1)
    freedom = count - design.shape[1]
    left = float((target - design @ fit).square().sum() / freedom)
    # Only thresholds count: a level below zero, and slopes against the row.
    against = design @ fit.clamp_max(0)
    by_chance = design.shape[1] / count * left
    made = max(float(against.square().mean()) - by_chance, 1e-4 * left)
    if made <= _NEGLIGIBLE**2 * size**2:  # an exact fit, but of something other than thresholds
        return -2.0
    return min(4.0, 0.5 * math.log10(made / max(left, 1e-12 * made)))
