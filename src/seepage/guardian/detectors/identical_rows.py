"""Rows that all measure the same thing, with a ladder of biases (imprint, Fowl et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seepage.core.types import Detector
from seepage.guardian.detectors.calibrated import Reading, most_striking, weight_detector
from seepage.guardian.detectors.layers import WeightLayer, fresh_generator, heads, of_kind, sampled
from seepage.guardian.detectors.pass_through import reading_input

_ROWS = 1024
"""Rows that are compared. Cost: sorting them takes time."""
_PROJECTIONS = 4
"""Random lines along which rows are sorted. Cost: equal rows are neighbours on each of them; more lines cost
time and find those that are nearly equal more surely."""

_EQUAL = 0.9999
"""Mean cosine from which on rows are equal. Derived: rounding to half precision leaves more."""
_LEAST_LADDER = 8
"""Equal rows with biases of their own that make a ladder. Derived: of eight random directions in four or more
dimensions none are equal; two or three copies of a row come from pruning and merging."""


def identical_rows() -> Detector:
    """Weights: rows that point the same way and differ by their biases only (imprint)."""
    return weight_detector("identical_rows", measure)


def measure(layers: Sequence[WeightLayer]) -> Reading:
    readings = []
    last, first = heads(layers), reading_input(layers)
    for layer in of_kind(layers, "dense", fan_in=8, rows=4):
        # The classes' rows may be alike for other reasons: without biases to tell rows apart no bins arise.
        if layer.bias is None or any(layer is head for head in last):
            continue
        joined = sampled(torch.cat([layer.rows, layer.bias.unsqueeze(1)], dim=1), _ROWS)
        rows = joined[_distinct(joined[:, -1]), :-1]
        alike = likeness(rows)
        exact = alike >= _EQUAL and len(rows) >= _LEAST_LADDER
        score = beyond_chance(rows, alike)
        # Rows that read features may be alike: training makes them so.
        if not (exact or any(layer is one for one in first)):
            continue
        words = f"a row of '{layer.name}' has a neighbour with another bias at a mean cosine of {alike:.3f}"
        readings.append(Reading(score=score, layer=layer.name, evidence=words, exact=exact))
    return most_striking(readings, needs="dense layer with biases that reads the input before the last one")


def likeness(rows: Tensor) -> float:
    """Mean cosine of each row with the most similar one among its neighbours along a few random lines.

    >>> likeness(torch.ones(5, 8))
    1.0
    """
    rows = rows[rows.square().sum(dim=1) > 0]
    if len(rows) < 4:
        return 0.0
    unit = rows / rows.norm(dim=1, keepdim=True)
    lines = torch.randn(rows.shape[1], _PROJECTIONS, generator=fresh_generator()).to(unit)
    order = (unit @ lines).argsort(dim=0)  # (N, projections)
    best = torch.full_like(unit[:, 0], -1.0)
    for along in order.T:
        cosine = (unit[along[1:]] * unit[along[:-1]]).sum(dim=1)
        best.scatter_reduce_(0, along[1:], cosine, "amax")
        best.scatter_reduce_(0, along[:-1], cosine, "amax")
    return min(1.0, round(float(best.mean()), 6))


def beyond_chance(rows: Tensor, alike: float) -> float:
    """The likeness above that of rows with the same sizes of weights in each column and random signs, over
    what there is room for: many rows of few inputs have neighbours for no reason.

    >>> generator = torch.Generator().manual_seed(0)
    >>> few = torch.randn(500, 8, generator=generator)
    >>> likeness(few) > 0.6, abs(beyond_chance(few, likeness(few))) < 0.1
    (True, True)
    """
    order = torch.rand(rows.shape, generator=fresh_generator()).argsort(dim=0).to(rows.device)
    signs = torch.randint(2, rows.shape, generator=fresh_generator()).to(rows) * 2 - 1
    chance = likeness(rows.gather(0, order) * signs)
    return (alike - chance) / max(1e-6, 1 - chance)


def _distinct(bias: Tensor) -> Tensor:
    """Indices of rows with a bias of their own: equal rows with equal biases are no ladder."""
    ordered, index = bias.sort()
    new = torch.ones_like(ordered, dtype=torch.bool)
    new[1:] = ordered[1:] != ordered[:-1]
    return index[new]
