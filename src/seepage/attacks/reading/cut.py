"""Values that were sent as 0 because they were small: pruning, and filters that keep the largest part.

A pixel of one grey step may fall below such a threshold at the row where its example is read. The reading
then has a 0 there, lies on the grid and is wrong. What a row hides is bounded: a value x that was cut had
|G_b[i] x| < t, so |x| < t / |G_b[i]|, where t is the smallest number that was sent.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.attacks.reading.peeling.tolerances import BLOCK

_EDGE_ROWS = 8
"""Rows with different signals whose smallest number lies within a factor of 2 of the smallest one of all,
from which on that is an edge. Derived: smallest numbers go with the signals, whose density is finite at 0, so
that without an edge any further row lies there with a chance of one half: 2 ** -8 by accident, which costs
the weakest claims. Tested: test_an_edge_is_seen_over_a_plateau."""
_SAME_SIGNAL = 1e-3
"""Relative difference below which signals count as one: rows of a crafted layer may all have the same.
Derived: an update in half precision rounds each to 5e-4 of itself."""


def smallest_sent(weight: Tensor, bias: Tensor) -> float:
    """t for a gradient (N, m) and its bias (N,): 0.0 where nothing shows that small values were cut.

    >>> generator = torch.Generator().manual_seed(0)
    >>> signals = torch.randn(100, generator=generator)
    >>> whole = torch.outer(signals, torch.rand(50, generator=generator))
    >>> smallest_sent(whole, signals)
    0.0
    >>> cut = torch.where(whole.abs() < 0.3, 0.0, whole)
    >>> bool(0.3 <= smallest_sent(cut, signals) < 0.31)
    True
    """
    least = torch.cat([_least(part) for part in weight.split(BLOCK)])  # (N,) inf: nothing was sent
    edge = least.min()
    if not bool(edge.isfinite()):
        return 0.0
    near = bias[least <= 2 * edge].abs().double().sort().values
    different = 1 + int((near.diff() > _SAME_SIGNAL * near[1:]).sum())
    return float(edge) if different > _EDGE_ROWS else 0.0


def _least(rows: Tensor) -> Tensor:
    """(r,) the smallest magnitude that is not 0."""
    size = rows.abs()
    return torch.where(size > 0, size, torch.inf).amin(1)


def hidden_values(weight: Tensor, smallest: float, rows: Tensor, bias: Tensor) -> Tensor:
    """(k,) how large a value may be that rows (k,), read by dividing by `bias` (k,), show as 0.

    smallest: as `smallest_sent` has it, in the units of `bias`.
    """
    size = bias.abs().double().clamp_min(torch.finfo(torch.float64).tiny)
    if smallest == 0.0:
        return torch.zeros_like(size)
    zeros = torch.cat([(weight[some] == 0).any(1) for some in rows.split(BLOCK)])
    return torch.where(zeros, smallest / size, 0.0)
