"""A classification layer crafted to catch one class or one example (Wen et al. 2022, Sections 3.1, 3.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from seepage.core.errors import NotApplicable
from seepage.core.types import Detector
from seepage.guardian.detectors.calibrated import Reading, weight_detector
from seepage.guardian.detectors.layers import WeightLayer, classifier

_SMALLEST = 1e-9
"""Smallest share that is told from 0. Derived: below the rounding of float32 (6e-8), so that no share that
can be told is cut off."""


def lone_class_row() -> Detector:
    """Weights: a classifier in which one class's row differs and all others are zero or equal (fishing)."""
    return weight_detector("lone_class_row", measure_rows)


def class_bias() -> Detector:
    """Weights: classifier biases so far apart that no input could make up for them (fishing)."""
    return weight_detector("class_bias", measure_bias)


def measure_rows(layers: Sequence[WeightLayer]) -> Reading:
    head = _head(layers)
    rest, index = others_share(head.rows)
    words = (
        f"outside the row of class {index}, the classes of '{head.name}' differ by {rest:.2g} of the layer's "
        f"energy, where {len(head.rows)} alike classes have {1 - 1 / len(head.rows):.2g}"
    )
    return Reading(score=-math.log10(max(rest, _SMALLEST)), layer=head.name, evidence=words)


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
    head = _head(layers)
    if head.bias is None:
        raise NotApplicable(f"the classifier '{head.name}' has no bias, so its biases could not be checked.")
    spread = float(head.bias.max() - head.bias.min())
    words = f"the biases of the classes in '{head.name}' lie {spread:.3g} apart"
    return Reading(score=math.log10(1 + spread), layer=head.name, evidence=words)


def _head(layers: Sequence[WeightLayer]) -> WeightLayer:
    head = classifier(layers)
    if head is None:
        raise NotApplicable(
            "the model has no dense layer with two or more outputs, so there is no classifier to check."
        )
    return head
