"""Examples whose backward signal a ReLU near zero has bent.

Client and server compute the same network, but sum in different orders: an activation that is 0 within
rounding may fall to one side there and to the other here. In the layer that is read, one row more or less
holds the example; in a deeper layer, its signal differs a little (3e-4 to 3e-2 seen) at every row. What was
received decides, for examples that the alphabet already proves.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.attacks.parts.peeling.readings import Readings
from seepage.attacks.parts.peeling.residual import Found
from seepage.attacks.parts.peeling.signals import BackwardSignals

SUSPECT = 2e-5
"""Mismatch of an exact example beyond which its signal was bent."""
_SHAKES, _SHAKE = 8, 1e-6
_THRESHOLD = 1e-5
"""An activation below this share of the norm of its terms may have either sign in float32."""


def absorb_observed(found: Found, readings: Readings, again: Tensor, signals: BackwardSignals) -> None:
    """Found examples that are left over alone at some row: what is left there is their signal, as observed.

    again: (readings, found) bool, the same example. Only where its activation is 0 within rounding, or where
    the whole signal of an example on an alphabet was bent; anything else left over stays to be explained.
    """
    weight, bias = signals.parameters
    for k, j in zip(*(i.tolist() for i in again.nonzero(as_tuple=True)), strict=True):
        row = int(readings.row[k])
        products = weight[row] * found.features[j]
        activation = products.double().sum() + bias[row].double()
        bent = bool(found.exact[j]) and float(found.mismatch[j]) > SUSPECT
        if bent or float(activation.abs()) <= _THRESHOLD * float(products.norm()):
            found.signals[j, row] += readings.bias[k]


def straightened(
    features: Tensor,
    label: Tensor,
    signal: Tensor,
    *,
    row: int,
    observed: Tensor,
    by: BackwardSignals,
    seed: int,
) -> Tensor:
    """(N,): the signal of an example (m,) with deeper ReLUs near 0 on the side that `observed` shows.

    The input is shaken by about its own rounding; the version that was observed at `row` is kept, and at the
    row itself what was observed.
    """
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(_SHAKES, len(features), generator=generator).to(features)
    shaken = features * (1 + _SHAKE * noise)
    tried = torch.cat([signal.unsqueeze(0), by.at_all_rows(shaken, label.expand(_SHAKES))])
    best = tried[(tried[:, row] - observed).abs().argmin()].clone()
    best[row] = observed
    return best
