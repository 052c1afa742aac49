"""Transmit-SNR: does the input arrive unaltered in front of a dense layer it should be far away from?

Honest layers mix. For each of some input values the most correlated feature is sought: a pass-through,
however hidden, has one with correlation 1 (Boenisch et al. 2021, Section 7 and Appendix B).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from seepage.core.errors import NotApplicable
from seepage.core.types import Detector, InputSpec, Modality
from seepage.guardian.detectors.calibrated import Reading, most_striking
from seepage.guardian.detectors.harmless import Probe, behaviour_detector, recorded
from seepage.guardian.detectors.layers import fresh_generator

_BATCH = 96
"""Inputs over which correlations are taken. Derived: unrelated values correlate by 0.1 over so many."""
_VALUES = 48
"""Input values whose arrival is looked for. Cost: time."""
_LOW_SHARE = 0.25
"""The score is that of the quarter of values that arrives worst. Tested:
test_constants_of_behaviour_detectors_lie_on_a_plateau."""
_FEW = 2
"""Weights of a filter that pass a value on by themselves. Derived: with one other weight, half of what
arrives is still the value."""
_MOST_CORRELATED = 1 - 1e-6
"""Largest correlation. Derived: 1 less ten times the rounding of float32."""


def transmission(*, spec: InputSpec | None = None, sample: Tensor | None = None) -> Detector:
    """Behaviour: the signal-to-noise ratio with which input values arrive in front of later dense layers."""
    return behaviour_detector("transmission", measure, spec, sample)


def measure(model: nn.Module, probe: Probe) -> Reading:
    if probe.spec.modality is Modality.TEXT:
        raise NotApplicable("token ids are no measure, so their transmission could not be checked.")
    if _passes_by_sparsity(model):
        raise NotApplicable(
            "the filters are pruned to single weights, which pass values on by themselves; whether more do "
            "than pruning explains is for the check of pass-through rows."
        )
    inputs = probe.inputs(_BATCH, like=model, white=True)
    flat = inputs.flatten(1)
    readings = []
    for name, features, _ in recorded(model, inputs, nn.Linear):
        if features.dim() != 2 or len(features) != _BATCH or _reads_input(features, flat):
            continue
        ratio = arrival(flat, features)
        words = f"input values arrive at '{name}' with a signal-to-noise ratio of {ratio:.3g}"
        readings.append(Reading(score=math.log10(ratio), layer=name, evidence=words))
    return most_striking(readings, needs="dense layer behind other layers")


def _passes_by_sparsity(model: nn.Module) -> bool:
    """Whether most filters of some convolution were left with two weights or fewer of nine or more."""
    filters = [
        tensor.detach().flatten(1)
        for name, tensor in model.named_parameters()
        if name.endswith("weight") and tensor.dim() == 4 and tensor[0].numel() >= 9
    ]
    return any(float((rows != 0).sum(dim=1).float().median()) <= _FEW for rows in filters)


def _reads_input(features: Tensor, flat: Tensor) -> bool:
    return features.shape == flat.shape and torch.equal(features, flat)


def arrival(inputs: Tensor, features: Tensor) -> float:
    """r^2 / (1 - r^2) of the input values (n, d) with their best feature (n, m), at the lower quartile."""
    size = inputs.shape[1]
    chosen = torch.randperm(size, generator=fresh_generator())[:_VALUES].to(inputs.device)
    x, f = _standard(inputs[:, chosen]), _standard(features)
    best = (x.T @ f).abs().amax(dim=1)  # (values,)
    r2 = float(torch.quantile(best, _LOW_SHARE).clamp_max(_MOST_CORRELATED)) ** 2
    return max(r2 / (1 - r2), 1e-3)


def _standard(values: Tensor) -> Tensor:
    centred = values.float() - values.float().mean(dim=0)
    scaled: Tensor = centred / centred.norm(dim=0).clamp_min(1e-12)
    return scaled
