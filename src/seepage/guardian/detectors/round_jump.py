"""What changed since the last round: more than honest updates do, or the architecture itself."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from seepage.core.errors import NotApplicable
from seepage.core.types import Broadcast, Detector, Finding
from seepage.guardian.detectors.calibrated import Reading, Thresholds, judge, most_striking, thresholds
from seepage.guardian.detectors.layers import tensors_of

ANOTHER_ARCHITECTURE = 99.0
"""The score where tensors were added, removed or reshaped. Derived: larger than any ratio of lengths in
decimal logarithms (float32 ends at 38)."""


def round_jump(*, previous: nn.Module | None = None) -> Detector:
    """Rounds: weights that moved further than honest updates do since the last round; inserted layers.

    >>> net = nn.Linear(8, 8)
    >>> round_jump(previous=net)(Broadcast(net)).verdict
    <Verdict.CLEAN: 'clean'>
    """

    def detect(broadcast: Broadcast) -> Finding:
        if previous is None:
            raise NotApplicable("no earlier model was given, so nothing could be compared with it.")
        reading = measure(broadcast.model, previous)
        # No threshold is needed there: an honest server does not change the architecture.
        certain = Thresholds(suspicious=0.0)
        return judge(reading, certain if reading.exact else thresholds("round_jump"))

    return detect


def measure(model: nn.Module, previous: nn.Module) -> Reading:
    now, before = tensors_of(model), tensors_of(previous)
    if changed := _reshaped(now, before):
        words = (
            f"the architecture is not that of the previous round: {len(changed)} tensor(s) were added, "
            f"removed or reshaped, the first '{changed[0]}'"
        )
        layer = changed[0].rpartition(".")[0]
        return Reading(score=ANOTHER_ARCHITECTURE, layer=layer, evidence=words, exact=True)
    readings = []
    for name, tensor in now.items():
        old = before[name].to(tensor)
        size = float(old.norm())
        if tensor.dim() < 2 or size == 0:  # biases start at zero, where any step is infinitely large
            continue
        moved = float(torch.linalg.vector_norm(tensor - old)) / size
        cosine = float((tensor * old).sum()) / max(size * float(tensor.norm()), 1e-30)
        words = (
            f"'{name}' moved by {moved:.2g} times its size since the previous round, to a cosine of "
            f"{cosine:.2f} with what it was"
        )
        layer = name.removesuffix("weight").removesuffix(".") or name
        readings.append(Reading(score=math.log10(max(moved, 1e-6)), layer=layer, evidence=words))
    return most_striking(readings, needs="weight that was not zero in the previous round")


def _reshaped(now: dict[str, Tensor], before: dict[str, Tensor]) -> list[str]:
    shape = {name: tensor.shape for name, tensor in before.items()}
    return [n for n in {**now, **before} if n not in now or now[n].shape != shape.get(n)]
