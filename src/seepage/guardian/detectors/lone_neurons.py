"""Neurons that fire for exactly one input of a batch: where a trap works, it shows here."""

from __future__ import annotations

from torch import Tensor, nn

from seepage.core.types import Detector, InputSpec
from seepage.guardian.detectors.calibrated import Reading, most_striking
from seepage.guardian.detectors.harmless import Probe, behaviour_detector, recorded

_BATCH = 32
"""Harmless inputs. Tested: test_constants_of_behaviour_detectors_lie_on_a_plateau."""
_LEAST_NEURONS = 16
"""Neurons of a layer that is judged. Derived: with fewer, one lone neuron is already more than 6 % of
them."""


def lone_neurons(*, spec: InputSpec | None = None, sample: Tensor | None = None) -> Detector:
    """Behaviour: the share of a layer's active neurons that fire for exactly one of 32 harmless inputs."""
    return behaviour_detector("lone_neurons", measure, spec, sample)


def measure(model: nn.Module, probe: Probe) -> Reading:
    readings = []
    calls = recorded(model, probe.inputs(_BATCH, like=model), nn.Linear)
    for name, _, output in calls[:-1]:  # the last one makes logits, which no ReLU cuts
        if output.dim() != 2 or output.shape[1] < _LEAST_NEURONS:
            continue
        share = lone_share(output > 0)
        words = f"{share:.0%} of the neurons of '{name}' fire for exactly one of {_BATCH} harmless inputs"
        readings.append(Reading(score=share, layer=name, evidence=words))
    return most_striking(readings, needs=f"hidden dense layer of {_LEAST_NEURONS} or more neurons")


def lone_share(fires: Tensor) -> float:
    """Share of neurons (columns) that fire for exactly one example (row), of those that fire at all.

    >>> import torch
    >>> lone_share(torch.tensor([[1, 1, 0, 0], [0, 1, 1, 0]]).bool()) == 2 / 3
    True
    """
    times = fires.sum(dim=0)
    active = int((times > 0).sum())
    # Few active neurons are no evidence: a layer that is dead but for one neuron isolates nothing.
    return int((times == 1).sum()) / max(active, fires.shape[1] // 20, 1)
