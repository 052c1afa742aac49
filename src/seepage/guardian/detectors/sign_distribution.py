"""Kolmogorov-Smirnov: are negative and positive weights of a layer distributed alike?

Every usual initialiser is symmetric. Boenisch et al. 2021, Section 10.1, name this test and why it alone
cannot settle the matter: training makes layers asymmetric too, hence a threshold from trained models.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seepage.core.types import Detector
from seepage.guardian.detectors.calibrated import Reading, most_striking, weight_detector
from seepage.guardian.detectors.layers import WeightLayer, of_kind, sampled
from seepage.guardian.detectors.pass_through import reading_input

_ROWS = 64
"""Rows that are looked at. Cost: time."""
_VALUES = 100_000
"""Weights that are looked at. Cost: sorting them takes time."""
_LEAST = 500
"""Weights of a layer, below which chance alone makes large distances. Derived: two samples of 250 differ by
0.12 (Kolmogorov-Smirnov) in one of 20 cases."""


def sign_distribution() -> Detector:
    """Weights: the distance between the sizes of positive and of negative weights (Kolmogorov-Smirnov)."""
    return weight_detector("sign_distribution", measure)


def measure(layers: Sequence[WeightLayer]) -> Reading:
    readings = []
    # A trap has to read the input; gates and mixtures of features have two distributions by training.
    for layer in of_kind(reading_input(layers), "dense", fan_in=16):
        values = sampled(layer.rows, _ROWS).flatten()
        values = sampled(values[values != 0], _VALUES)
        if len(values) < _LEAST:
            continue
        negative, positive = -values[values < 0], values[values > 0]
        if 2 * min(len(negative), len(positive)) < _LEAST:  # of a few, sizes are no distribution
            continue
        score = distance(negative, positive)
        words = f"sizes of negative and of positive weights in '{layer.name}' are {score:.3f} apart (KS)"
        readings.append(Reading(score=score, layer=layer.name, evidence=words))
    return most_striking(
        readings, needs=f"dense layer with {_LEAST // 2} weights of either sign that an input reaches"
    )


def distance(a: Tensor, b: Tensor) -> float:
    """The two-sample Kolmogorov-Smirnov statistic.

    >>> distance(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
    1.0
    """
    if not len(a) or not len(b):
        return 1.0
    everywhere = torch.cat([a, b])
    below_a = torch.searchsorted(a.sort().values, everywhere, right=True) / len(a)
    below_b = torch.searchsorted(b.sort().values, everywhere, right=True) / len(b)
    return float((below_a - below_b).abs().max())
