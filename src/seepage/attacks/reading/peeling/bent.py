"""Examples whose backward signal rounding has bent.

Client and server compute the same network, but sum in different orders. An activation that is 0 within
rounding may fall to one side there and to the other here: in the layer that is read, one row more or less
holds the example; in a deeper layer, its signal differs a little (3e-4 to 3e-2 seen) at every row. And where
long sums cancel (trap weights over 62500 values) or the loss is nearly saturated, p - y itself differs. What
was received decides, for examples that the alphabet already proves.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.attacks.reading.peeling.readings import Readings
from seepage.attacks.reading.peeling.residual import Found
from seepage.attacks.reading.peeling.tolerances import ATTEMPTS, BENT, EITHER_SIDE, FEW, SURE, SUSPECT
from seepage.models.signals import ROUNDING, BackwardSignals


def absorb_observed(found: Found, readings: Readings, again: Tensor, signals: BackwardSignals) -> None:
    """Found examples that are left over alone at some row: what is left there is their signal, as observed.

    again: (readings, found) bool, the same example. Only where its activation is 0 within rounding, or where
    little of an example on an alphabet is left; anything else left over stays to be explained.
    """
    weight, bias = signals.parameters
    for k, j in zip(*(i.tolist() for i in again.nonzero(as_tuple=True)), strict=True):
        row = int(readings.row[k])
        products = weight[row] * found.features[j]
        activation = products.double().sum() + bias[row].double()
        little = BENT * float(found.signals[j].abs().max())
        bent = bool(found.exact[j]) and float(readings.bias[k].abs()) <= little
        if bent or float(activation.abs()) <= EITHER_SIDE * float(products.norm()):
            found.signals[j, row] += readings.bias[k]


def as_observed(
    signals: Tensor, readings: Readings, labels: Tensor, *, which: Tensor, by: BackwardSignals
) -> None:
    """Correct predicted signals (k, N), in place, by what each reading shows at its own row.

    which: (k,) bool, readings of a single example that the alphabet proves. Not where a faint companion is
    what makes the difference: it would have moved the reading off the alphabet by as much.
    """
    at_row = signals.gather(1, readings.row.unsqueeze(1)).squeeze(1)
    off = (at_row - readings.bias).abs()
    bent = which & (off > SURE * readings.noise)
    bent &= readings.moved <= FEW * off / readings.bias.abs()
    if by.spec.num_classes == 2:
        index = bent.nonzero().squeeze(1)
        signals[index] = _rescaled(signals[index], readings.select(index), labels[index], by)
        return
    bent &= off > SUSPECT * signals.abs().amax(1)
    for j in bent.nonzero().squeeze(1).tolist():
        signals[j] = straightened(
            readings.features[j],
            labels[j],
            signals[j],
            row=int(readings.row[j]),
            observed=readings.bias[j],
            by=by,
        )


def _rescaled(signals: Tensor, readings: Readings, labels: Tensor, by: BackwardSignals) -> Tensor:
    """With two classes p - y is one number: it is observed, and the model gives the direction.

    The other label's signal has the same direction, and more digits where p - y of this one is tiny.
    """
    other = by.at_all_rows(readings.features, 1 - labels)
    larger = other.norm(dim=1) > signals.norm(dim=1)
    direction = torch.where(larger.unsqueeze(1), other, signals)
    at_row = direction.gather(1, readings.row.unsqueeze(1)).squeeze(1)
    factor = (readings.bias / at_row).to(signals)
    return torch.where((at_row != 0).unsqueeze(1), direction * factor.unsqueeze(1), signals)


def straightened(
    features: Tensor,
    label: Tensor,
    signal: Tensor,
    *,
    row: int,
    observed: Tensor,
    by: BackwardSignals,
) -> Tensor:
    """(N,): the signal of an example (m,) with deeper ReLUs near 0 on the side that `observed` shows.

    The input is shaken by about its own rounding; the version that was observed at `row` is kept, and at the
    row itself what was observed.
    """
    generator = torch.Generator().manual_seed(row)
    noise = torch.randn(ATTEMPTS, len(features), generator=generator).to(features)
    shaken = features * (1 + ROUNDING * noise)
    tried = torch.cat([signal.unsqueeze(0), by.at_all_rows(shaken, label.expand(ATTEMPTS))])
    best = tried[(tried[:, row] - observed).abs().argmin()].clone()
    best[row] = observed.to(best)
    return best
