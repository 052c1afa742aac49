"""Whether a neuron was fired by half of an example: then that is the mean of two that are nearly alike.

x + e and x - e send what x sends twice, up to the square of e, but for a neuron that only one of them fires:
there is d_i x / 2 in place of d_i x or of nothing, whatever rounding does. So a batch of pairs of which each
is counted once differs from that of their means, if some neuron lies between two of a pair. A single example
fires a neuron or does not. Nothing here sees the truth.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from seepage.attacks.reading.peeling.tolerances import COARSE
from seepage.models.signals import BackwardSignals

_REACH = 4.0
"""Steps between an example and its copies within which neurons are looked at. Cost: each is one pass more;
pairs that are farther apart are seen where a neuron happens to be as near."""
_PAIRS = 512
"""Examples and neurons looked at, the nearest first. Cost: time."""


def half_fired(
    signals: BackwardSignals,
    features: Tensor,
    labels: Tensor,
    step: Tensor,
    left: Callable[[Tensor], Tensor],
) -> bool:
    """Whether any of the examples (k, m) with labels (k,) is at some neuron by half.

    step: (k,) how far a value must be off to be a wrong one. left: what rows (r,) of the gradient hold, as a
    sum over examples, when the examples' own signals are taken away: (r, m).
    """
    weight, bias = (each.double() for each in signals.parameters)
    x = features.double()
    z = x @ weight.T + bias  # (k, N)
    near = z.abs() / (_REACH * step.double().unsqueeze(1) * weight.abs().amax(1)).clamp_min(
        torch.finfo(z.dtype).tiny
    )
    which, row = (near <= 1).nonzero().unbind(1)
    nearest = near[which, row].argsort()[:_PAIRS]
    which, row = which[nearest], row[nearest]
    if not len(row):
        return False
    own, x, w = z[which, row], x[which], weight[row]
    across = w / w.square().sum(1, keepdim=True)
    # On either side of the neuron's edge; at it, a little away.
    far = torch.maximum(own.abs(), near.new_tensor(torch.finfo(signals.parameters[0].dtype).eps))
    on, off = (
        _signal(signals, x + (side * far - own).unsqueeze(1) * across, row, labels[which])
        for side in (1.0, -1.0)
    )
    rest = left(row).double()
    more = (rest * x).sum(1) / x.square().sum(1).clamp_min(torch.finfo(x.dtype).tiny)
    beside = (rest - more.unsqueeze(1) * x).norm(dim=1)
    apart = on - off
    share = (torch.where(own > 0, on, off) + more - off) / apart
    # What another example adds there is no multiple of this one.
    alone = beside <= COARSE * apart.abs() * x.norm(dim=1)
    return bool((alone & ((share - 0.5).abs() <= COARSE) & (apart != 0)).any())


def _signal(signals: BackwardSignals, features: Tensor, row: Tensor, labels: Tensor) -> Tensor:
    """(p,) of each example at its row."""
    at = signals.at_one_row(features.to(signals.parameters[0].dtype), row)
    return at.gather(1, labels.unsqueeze(1)).squeeze(1).double()
