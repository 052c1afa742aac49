"""The last step of the training against the steps before it, in size and in direction.

Honest rounds resemble each other: a layer moves about as far as in the rounds before, partly along the same
way. A layer that was crafted anew moves much further, to where no earlier step pointed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from seepage.core.errors import NotApplicable
from seepage.core.types import Broadcast, Detector, Finding
from seepage.guardian.detectors.calibrated import Reading, judge, most_striking, thresholds
from seepage.guardian.detectors.layers import tensors_of

MOST_ROUNDS = 4
"""Earlier models that are looked at. Cost: each takes as much memory as the model."""
_LEAST_STEP = 1e-3
"""Share of a layer's size that smaller steps count as, so that a layer at rest may begin to move. Tested:
test_constants_of_round_detectors_lie_on_a_plateau."""
_VALUES = 200_000
"""Weights of a layer that are compared. Cost: time."""
_MOST = 9.0
"""Largest score. Derived: decimal logarithms; float32 holds seven digits."""


def step_history(*, history: Sequence[nn.Module] = ()) -> Detector:
    """Rounds: a step that is larger than the earlier ones and leads away from where they led.

    >>> nets = [nn.Linear(8, 8, bias=False) for _ in range(4)]
    >>> for size, net in zip((1.0, 1.1, 1.2, 1.3), nets):
    ...     _ = net.weight.data.fill_(size)
    >>> step_history(history=nets[:3])(Broadcast(nets[3])).verdict
    <Verdict.CLEAN: 'clean'>
    """

    def detect(broadcast: Broadcast) -> Finding:
        if len(history) < 3:
            raise NotApplicable(
                "fewer than three earlier rounds were given, so the last step could not be compared."
            )
        return judge(measure(broadcast.model, history), thresholds("step_history"))

    return detect


def measure(model: nn.Module, history: Sequence[nn.Module]) -> Reading:
    """history: models of earlier rounds, the oldest first."""
    rounds = [_layers(each) for each in (*history[-MOST_ROUNDS:], model)]
    readings = []
    for name, now in rounds[-1].items():
        places = [layers[name] for layers in rounds if name in layers and layers[name].shape == now.shape]
        if len(places) < len(rounds):
            continue  # `round_jump` tells when the architecture changed
        size = float(places[-2].norm())
        steps = torch.stack([after - before for before, after in pairwise(places)])
        largest = max(float(steps[:-1].norm(dim=1).max()), _LEAST_STEP * size)
        if largest == 0:
            continue
        off, cosine = off_course(steps[-1], steps[:-1])
        words = (
            f"the last step of '{name}' is {float(steps[-1].norm()) / largest:.3g} times its largest of the "
            f"{len(steps) - 1} rounds before, at a cosine of {cosine:.2f} with where those led"
        )
        score = min(_MOST, math.log10(max(off / largest, 1e-6)))
        readings.append(Reading(score=score, layer=name, evidence=words))
    return most_striking(readings, needs="layer that moved in earlier rounds")


def off_course(step: Tensor, earlier: Tensor) -> tuple[float, float]:
    """(size of the part of a step (d,) that no sum of earlier ones (k, d) explains, cosine with the rest).

    >>> off, cosine = off_course(torch.tensor([3.0, 4.0]), torch.tensor([[0.0, 2.0]]))
    >>> round(off, 4), round(cosine, 4)
    (3.0, 0.8)
    """
    gram = (earlier @ earlier.T).double()  # (k, k): small, whatever the size of the layer
    weights = torch.linalg.pinv(gram, hermitian=True) @ (earlier @ step).double()
    along = weights.to(step) @ earlier
    norm = float(step.norm())
    return float((step - along).norm()), (float(along.norm()) / norm if norm > 0 else 0.0)


def _layers(model: nn.Module) -> dict[str, Tensor]:
    """Weights and biases of each layer as one vector, without the running statistics of normalisation."""
    found: dict[str, list[Tensor]] = {}
    for name, tensor in tensors_of(model).items():
        stem, _, leaf = name.rpartition(".")
        if leaf in {"weight", "bias"}:
            found.setdefault(stem or "model", []).append(_flat(tensor))
        elif not leaf.startswith("running_"):
            found[name] = [_flat(tensor)]
    return {name: torch.cat(parts) for name, parts in found.items()}


def _flat(tensor: Tensor) -> Tensor:
    """At most some hundred thousand values, spread evenly: large models must be quick."""
    values = tensor.detach().flatten()
    # An odd stride does not fall on the same columns of every row.
    values = values[:: 2 * (len(values) // (2 * _VALUES)) + 1]
    return values if values.dtype in (torch.float32, torch.float64) else values.float()
