"""Rows that all measure the same thing, with a ladder of biases (imprint, Fowl et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seepage.core.types import Detector
from seepage.guardian.detectors.calibrated import Reading, most_striking, weight_detector
from seepage.guardian.detectors.layers import WeightLayer, ends, fresh_generator, heads, of_kind, sampled
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
_SHARE = 0.1
"""Share of a layer's rows that one ladder has. Derived: as in `trap_rows`, not all rows need be crafted."""
_DRAWN = 64
"""Rows that all others are held against. Derived: none of so many is in a ladder of `_SHARE` once in 800
looks."""
_ROUNDING = 1e-5
"""How far the cosine of equal rows may lie below 1. Derived: rounding to bfloat16 (2^-9 of each weight)
leaves 2e-6 of two rows."""
_APART = 8.0
"""Times that thresholds scatter wider than directions do. Derived: rows that training made alike, a bias
being one more weight, have thresholds that are as much alike as their directions."""
_SPREAD = 0.02
"""Least scatter of a ladder's thresholds, as a share of the largest. Derived: steps have to lie where inputs
do, and what is measured of them varies by a tenth of its mean and more; tables that start as one row over and
over, with ones for biases (a state space model's A and D), come to .002 by training."""


def identical_rows() -> Detector:
    """Weights: rows that point the same way and differ by their biases only (imprint)."""
    return weight_detector("identical_rows", measure)


def measure(layers: Sequence[WeightLayer]) -> Reading:
    readings = []
    # The classes' rows may be alike for other reasons, and rows that read features: training makes them so.
    # One row over and over with a ladder of biases is no training's work, wherever the layer stands.
    first, last, classes = reading_input(layers), heads(layers), ends(layers)
    for layer in of_kind(layers, "dense", fan_in=8, rows=4):
        if layer.bias is None or _is_in(layer, classes):
            continue  # without biases to tell rows apart no bins arise
        drawn = sampled(torch.arange(len(layer.rows), device=layer.rows.device), _ROWS)
        joined = torch.cat([layer.rows[drawn], layer.bias[drawn].unsqueeze(1) * layer.scale], dim=1)
        share = ladder(joined[:, :-1], joined[:, -1])
        words = (
            f"{share:.0%} of the rows of '{layer.name}' are one row over and over, with a ladder of biases"
        )
        reading = Reading(score=float(share >= _SHARE), layer=layer.name, evidence=words, exact=True)
        if share < _SHARE and not _is_in(layer, last):
            reading = _of_neighbours(layer, joined, reads_input=_is_in(layer, first)) or reading
        readings.append(reading)
    return most_striking(readings, needs="dense layer with biases before the last one")


def _of_neighbours(layer: WeightLayer, joined: Tensor, *, reads_input: bool) -> Reading | None:
    """How much alike the rows are in pairs; None where that says nothing."""
    own = joined[_distinct(joined[:, -1])]
    rows = own[:, :-1]
    alike = likeness(rows)
    exact = alike >= _EQUAL and len(rows) >= _LEAST_LADDER
    exact = exact and _lie_apart(own[:, -1] / rows.norm(dim=1).clamp_min(1e-30), angle=0.0)
    if not (exact or reads_input):
        return None
    words = f"a row of '{layer.name}' has a neighbour with another bias at a mean cosine of {alike:.3f}"
    return Reading(score=beyond_chance(rows, alike), layer=layer.name, evidence=words, exact=exact)


def _is_in(layer: WeightLayer, layers: Sequence[WeightLayer]) -> bool:
    return any(layer is one for one in layers)


def ladder(rows: Tensor, bias: Tensor) -> float:
    """The largest share of rows that are one direction up to rounding, with thresholds that lie apart; 0 for
    fewer than `_LEAST_LADDER`.

    Rows that read one input alone do not count: signs are all they differ by (`pass_through` looks at them).

    >>> generator = torch.Generator().manual_seed(0)
    >>> random, steps = torch.randn(40, 20, generator=generator), torch.linspace(-3, 0, 40)
    >>> once = random[:1] * torch.rand(40, 1, generator=generator)
    >>> ladder(random, steps), ladder(once, steps), ladder(once, -once.norm(dim=1))
    (0.0, 1.0, 0.0)
    """
    own = _distinct(bias)
    own = own[(rows[own] != 0).sum(dim=1) > 1]
    if len(own) < _LEAST_LADDER:
        return 0.0
    chosen = rows[own].double()
    norm = chosen.norm(dim=1)
    unit, threshold = chosen / norm.unsqueeze(1), bias[own].double() / norm
    below = 1 - sampled(unit, _DRAWN) @ unit.T  # (drawn, N)
    equal = below < _ROUNDING
    most = 0
    for each, alike in zip(below, equal, strict=True):
        count = int(alike.sum())
        if count < max(_LEAST_LADDER, most + 1):
            continue
        steps = threshold[alike]
        angle = float((2 * each[alike].clamp_min(0).mean()).sqrt())  # to the drawn row
        most = count if _lie_apart(steps, angle) else most
    return most / len(rows)


def _lie_apart(steps: Tensor, angle: float) -> bool:
    """Whether thresholds are a ladder, or one threshold as rows are one row: by so wide an angle."""
    return float(steps.std()) > max(_APART * angle, _SPREAD * float(steps.abs().max()))


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
