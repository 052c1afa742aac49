"""Neurons that fire for few of the client's own examples, each for others: what every trap is made for.

However a trap is disguised, its neurons have to be silent for most examples and to respond each in its own
way, or nobody is isolated (quantile traps, Nowak et al. 2024; trap weights, Boenisch et al. 2021). Noise does
not show it: the biases are made for data. Training makes neurons fire seldom as well, but those of a layer
that moved together fire for the same examples.
"""

from __future__ import annotations

from torch import Tensor, nn

from seepage.core.errors import NotApplicable
from seepage.core.types import Detector, InputSpec
from seepage.guardian.detectors.calibrated import Reading, most_striking
from seepage.guardian.detectors.harmless import Probe, behaviour_detector, recorded
from seepage.guardian.detectors.layers import weight_layers
from seepage.guardian.detectors.pass_through import reading_input

_MOST = 256
"""Examples that the model is run on. Cost: time."""
LEAST_EXAMPLES = 32
"""Examples that are needed. Derived: a mean is known to less than a fifth of a standard deviation."""
_LEAST_NEURONS = 16
"""Neurons of a layer that is judged. Derived: with fewer, one neuron is more than 6 % of them."""
_SELDOM = (1.0, 3.5)
"""Standard deviations between a neuron's mean response and zero. Derived: of normal responses 16 % lie beyond
the first; beyond the second, one in 4,000 does, so the neuron is dead and isolates nobody."""


def rare_neurons(*, spec: InputSpec | None = None, sample: Tensor | None = None) -> Detector:
    """Behaviour: neurons that read the input and fire for few examples of a sample, each for others."""

    def measured(model: nn.Module, probe: Probe) -> Reading:
        if sample is None or len(sample) < LEAST_EXAMPLES:
            raise NotApplicable(
                f"this needs {LEAST_EXAMPLES} or more examples like the client's own, for traps are made "
                "for data: give them as a sample."
            )
        return measure(model, probe)

    return behaviour_detector("rare_neurons", measured, spec, sample)


def measure(model: nn.Module, probe: Probe) -> Reading:
    assert probe.sample is not None
    first = {layer.name for layer in reading_input(weight_layers(model))}
    inputs = probe.inputs(min(_MOST, len(probe.sample)), like=model)
    readings = []
    for name, _, output in recorded(model, inputs, nn.Linear)[:-1]:  # the last one makes logits
        if name not in first or output.dim() != 2 or output.shape[1] < _LEAST_NEURONS:
            continue
        share, own = rare_share(output)
        words = (
            f"{share:.0%} of the neurons of '{name}' fire for few of {len(inputs)} examples, and {own:.0%} "
            "of what such a neuron responds to is its own"
        )
        readings.append(Reading(score=share * own, layer=name, evidence=words))
    return most_striking(
        readings, needs=f"hidden dense layer of {_LEAST_NEURONS} or more neurons that an input reaches"
    )


def rare_share(response: Tensor) -> tuple[float, float]:
    """(share of neurons whose mean response lies below zero by `_SELDOM`, the part that is each one's own).

    Responses with a mean correlation of c are a common part and an own one, the latter sqrt(1 - c) as large.

    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> noise = torch.randn(200, 50, generator=generator)
    >>> rare_share(noise - 2)[0], rare_share(noise)[0], rare_share(noise[:, :1].repeat(1, 50) - 2)
    (1.0, 0.0, (1.0, 0.0))
    """
    values = response.double()
    spread = values.std(dim=0)
    alive = spread > 1e-9 * values.abs().amax().clamp_min(1e-30)
    below = -values.mean(dim=0) / spread.clamp_min(1e-30)
    seldom = alive & (below > _SELDOM[0]) & (below < _SELDOM[1])
    count = int(seldom.sum())
    if count < 2:
        return count / response.shape[1], 1.0
    chosen = values[:, seldom]
    standard = (chosen - chosen.mean(dim=0)) / spread[seldom]
    together = float(standard.sum(dim=1).square().sum() / (len(values) - 1))  # of all pairs, and each itself
    correlation = (together - count) / (count * (count - 1))
    own = max(0.0, 1 - max(0.0, correlation)) ** 0.5
    return count / response.shape[1], round(own, 6)
