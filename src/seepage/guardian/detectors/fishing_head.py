"""A classification layer crafted to catch one class or one example (Wen et al. 2022, Sections 3.1, 3.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from seepage.core.errors import NotApplicable
from seepage.core.types import Detector
from seepage.guardian.detectors.calibrated import Reading, most_striking, weight_detector
from seepage.guardian.detectors.layers import WeightLayer, heads

_SMALLEST = 1e-9
"""Smallest share that is told from 0. Derived: below the rounding of float32 (6e-8), so that no share that
can be told is cut off."""

_LEAST_FAN_IN = 8
"""Weights of a row that is judged by a share of energy. Derived: what `coverage` asks of a layer."""

_FRESH = math.sqrt(2 / 3)
"""Distance of two rows of a layer that nobody has trained yet. Derived: `nn.Linear` draws each of d weights
between -1/sqrt(d) and 1/sqrt(d), so that a row's squares sum to 1/3 whatever its length."""

_ZERO = 1e-6
"""Share of the energy from which on the other rows are zero or equal. Derived: the square of what rounding to
half precision leaves (5e-4), with room."""


def lone_class_row() -> Detector:
    """Weights: a classifier in which one class's row differs and all others are zero or equal (fishing)."""
    return weight_detector("lone_class_row", measure_rows)


def class_bias() -> Detector:
    """Weights: classifier biases so far apart that no input could make up for them (fishing)."""
    return weight_detector("class_bias", measure_bias)


def measure_rows(layers: Sequence[WeightLayer]) -> Reading:
    readings = []
    for head in _heads(layers):
        rest, index = others_share(head.rows)
        words = (
            f"outside the row of class {index}, the classes of '{head.name}' differ by {rest:.2g} of the "
            f"layer's energy, where {len(head.rows)} alike classes have {1 - 1 / len(head.rows):.2g}"
        )
        exact = rest <= _ZERO and len(head.rows) > 2
        score = -math.log10(max(rest, _SMALLEST)) if _telling(head, rest, index) else 0.0
        readings.append(Reading(score=score, layer=head.name, evidence=words, exact=exact))
    return max(readings, key=lambda reading: reading.score)


def _telling(head: WeightLayer, rest: float, index: int) -> bool:
    """Whether a share of energy says anything: few rows, or short ones, differ by as much for no reason."""
    if rest <= _ZERO:
        return True
    # Of two rows one is often several times the other, of two outputs that are no classes above all, and of
    # rows of a handful of weights too.
    if len(head.rows) == 2 or head.rows.shape[1] < _LEAST_FAN_IN:
        return False
    if len(head.rows) > 3:
        return True
    # So is one of three, and two others are no crowd that it stands out from. Fishing leaves them equal.
    one, other = (row.double() for k, row in enumerate(head.rows) if k != index)
    return float((one - other).norm()) < _FRESH * head.scale


def others_share(rows: Tensor) -> tuple[float, int]:
    """(share of the energy outside the strongest row, which row that is).

    Measured from zero and, for three classes or more, from the entrywise median row: without a bias the
    other rows are equal but not zero.

    >>> import torch
    >>> others_share(torch.tensor([[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]))
    (0.0, 0)
    """
    shares = []
    for shifted in [rows, rows - rows.median(dim=0).values] if len(rows) > 2 else [rows]:
        energy = shifted.double().square().sum(dim=1)
        total = float(energy.sum())
        if total > 0:
            shares.append((max(0.0, 1 - float(energy.max()) / total), int(energy.argmax())))
    return min(shares, default=(1.0, 0))


def measure_bias(layers: Sequence[WeightLayer]) -> Reading:
    readings = []
    for head in _heads(layers):
        if head.bias is None:
            continue
        gap, reach = lone_gap(head.bias), row_reach(head.rows) / head.scale
        words = (
            f"the bias of one class in '{head.name}' lies {gap:.3g} from those of all others, where the rows "
            f"make differences of {reach:.2g}"
        )
        readings.append(Reading(score=math.log10(1 + gap / max(1.0, reach)), layer=head.name, evidence=words))
    return most_striking(readings, needs="classifier with a bias")


def lone_gap(bias: Tensor) -> float:
    """How far the lowest or the highest lies from the next one.

    Outputs that are coordinates have biases far apart, but one after the other.

    >>> import torch
    >>> lone_gap(torch.tensor([0.0, 50.0, 51.0, 52.0])), lone_gap(torch.tensor([0.0, 30.0, 60.0, 90.0]))
    (48.0, 0.0)
    """
    ordered = bias.double().sort().values
    steps = ordered.diff()
    if len(steps) == 1:
        return float(steps[0])
    low, high = steps[0] - (ordered[-1] - ordered[1]), steps[-1] - (ordered[-2] - ordered[0])
    return max(0.0, float(low), float(high))


def row_reach(rows: Tensor) -> float:
    """How far inputs of size 1 move one class against the others: what a bias has to be held against.

    >>> import torch
    >>> row_reach(torch.tensor([[3.0, 4.0], [-3.0, -4.0]]))
    5.0
    """
    return float((rows - rows.mean(dim=0)).double().norm(dim=1).median())


def _heads(layers: Sequence[WeightLayer]) -> list[WeightLayer]:
    found = heads(layers)
    if not found:
        raise NotApplicable(
            "the model has no dense layer with two or more outputs, so there is no classifier to check."
        )
    return found
