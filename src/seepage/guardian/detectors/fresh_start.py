"""A model that forgot what it was: most of its layers no longer resemble those of the last round.

`round_jump` asks how far a layer moved. Weights that are drawn anew move by 1.4 times their size, which
honest first rounds do too, but they point nowhere near where they pointed.
"""

from __future__ import annotations

import torch
from torch import nn

from seepage.core.errors import NotApplicable
from seepage.core.types import Broadcast, Detector, Finding
from seepage.guardian.detectors.calibrated import Reading, judge, thresholds
from seepage.guardian.detectors.layers import tensors_of

_LEAST_WEIGHTS = 64
"""Of a tensor that is compared. Derived: unrelated directions of fewer have cosines above 0.12 by chance."""


def fresh_start(*, previous: nn.Module | None = None) -> Detector:
    """Rounds: most layers have no resemblance with those of the last round (a re-initialised model).

    >>> net, other = nn.Linear(32, 32), nn.Linear(32, 32)
    >>> resembling = fresh_start(previous=net)(Broadcast(net)).score
    >>> resembling < 0.01 and fresh_start(previous=net)(Broadcast(other)).score > 0.8
    True
    """

    def detect(broadcast: Broadcast) -> Finding:
        if previous is None:
            raise NotApplicable("no earlier model was given, so nothing could be compared with it.")
        return judge(measure(broadcast.model, previous), thresholds("fresh_start"))

    return detect


def measure(model: nn.Module, previous: nn.Module) -> Reading:
    """1 less the median cosine of all weights with what they were."""
    before = tensors_of(previous)
    cosines = [
        float(torch.nn.functional.cosine_similarity(now.flatten(), before[name].to(now).flatten(), dim=0))
        for name, now in tensors_of(model).items()
        if now.dim() >= 2 and now.numel() >= _LEAST_WEIGHTS
        if name in before and before[name].shape == now.shape and bool(before[name].any())
    ]
    if not cosines:
        raise NotApplicable("no weights of the previous round are large enough to be compared.")
    middle = float(torch.tensor(cosines).median())
    words = f"the weights have a median cosine of {middle:.2f} with those of the previous round"
    return Reading(score=1 - middle, layer=None, evidence=words)
