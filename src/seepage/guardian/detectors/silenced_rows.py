"""Filters and neurons made to stay silent: nearly all weights of one sign.

A pass-through has to mute what it does not use, by "negative input to the ReLU" (Boenisch et al. 2021,
Section 7) or "mainly negative random values" (Appendix B, measure 3). Training behind sigmoids makes whole
layers negative as well, so silence counts only beside a row that hands mostly one value on, by less than the
check of pass-through rows asks for, and only if every convolution shows it: an input has to pass all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seepage.core.types import Detector
from seepage.guardian.detectors.calibrated import Reading, most_striking, weight_detector
from seepage.guardian.detectors.layers import WeightLayer, mixing_convolutions, of_kind
from seepage.guardian.detectors.pass_through import reading_input

_MOSTLY = 0.8
"""Share of a row's energy in one positive entry. Tested:
test_constants_of_weight_detectors_lie_on_a_plateau."""


def silenced_rows() -> Detector:
    """Weights: filters with weights of one sign, as a pass-through mutes the maps it does not use."""
    return weight_detector("silenced_rows", measure)


def measure(layers: Sequence[WeightLayer]) -> Reading:
    convs = mixing_convolutions(layers, fan_in=9)
    # What is handed on has to be the input: rows of hidden and recurrent layers have one sign by training.
    readings = [] if convs else _silence(of_kind(reading_input(layers), "dense", fan_in=9, rows=4))
    readings += [min(_silence(convs), key=lambda reading: reading.score)] if convs else []
    return most_striking(readings, needs="layer of 9 or more inputs that an input reaches")


def _silence(layers: Sequence[WeightLayer]) -> list[Reading]:
    readings = []
    for layer in layers:
        passing = _hands_on(layer.rows)
        if not _enough(layer, passing):
            words = f"too few rows of '{layer.name}' hand mostly one value on for an input to arrive"
            readings.append(Reading(score=0.0, layer=layer.name, evidence=words))
            continue
        signs = layer.rows.sign()
        used = signs.abs().sum(dim=1).clamp_min(1)
        excess = -signs.sum(dim=1) / used.sqrt()  # about N(0, 1) for weights of random sign
        surplus = float(excess.clamp_min(0).square().mean().sqrt())
        one_sided = int(((excess > 3) & (signs > 0).sum(dim=1).lt(0.2 * used)).sum())
        words = (
            f"{one_sided} of {len(signs)} rows of '{layer.name}' are almost all negative; the surplus is "
            f"{surplus:.1f} standard deviations where random signs give 0.7"
            f", and {int(passing.sum())} row(s) hand mostly one value on"
        )
        readings.append(Reading(score=surplus, layer=layer.name, evidence=words))
    return readings


def _enough(layer: WeightLayer, passing: Tensor) -> bool:
    """One row, where a convolution hands a map on; of a dense layer rows for half of all values, as
    `pass_through` asks for: among a thousand trained rows one that looks at one value is nothing."""
    if layer.kind == "conv":
        return bool(passing.any())
    arriving = len(layer.rows[passing].argmax(dim=1).unique())
    return 2 * arriving >= min(layer.rows.shape)


def _hands_on(rows: Tensor) -> Tensor:
    """(N,) bool: most of the row's energy is in one positive entry."""
    energy = torch.linalg.vector_norm(rows, dim=1).square()
    mostly: Tensor = rows.amax(dim=1).clamp_min(0).square() >= _MOSTLY * energy.clamp_min(1e-30)
    return mostly
