"""Two readings of one update made one: what the stronger found, and what only the weaker has."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from seepage.types import Reconstruction

_SAME = 1e-4
"""Largest difference between two readings of one example, as a share of the largest value: a tenth of the
usual tolerance of exactness."""


def united(strong: Reconstruction, weak: Reconstruction) -> Reconstruction:
    """Every candidate of `strong`, then those of `weak` that it lacks, with their own claims.

    >>> one = Reconstruction(values=torch.tensor([[1.0], [2.0]]), claimed=torch.tensor([True, True]))
    >>> two = Reconstruction(values=torch.tensor([[2.0], [3.0]]), claimed=torch.tensor([True, False]))
    >>> both = united(one, two)
    >>> both.values.flatten().tolist(), both.claimed.tolist()
    ([1.0, 2.0, 3.0], [True, True, False])
    """
    if strong.space != weak.space or strong.model_units != weak.model_units:
        return strong
    new = ~_among(weak.values, strong.values)
    if not bool(new.any()):
        return strong
    return replace(
        strong,
        values=torch.cat([strong.values, weak.values[new].to(strong.values)]),
        claimed=_joined(strong.claimed, weak.claimed, new),
        confidence=_joined(strong.confidence, weak.confidence, new),
        support=_support(strong, int(new.sum())),
    )


def _support(strong: Reconstruction, added: int) -> Tensor | None:
    """One row for each that was added, as peeling may count its rows already; never more than were active."""
    if strong.support is None:
        return None
    one_each = strong.support.new_ones(added)
    most = None if strong.rows is None else strong.rows.active
    for counted in (strong.support, torch.ones_like(strong.support)):
        if most is None or int(counted.sum()) + added <= most:
            return torch.cat([counted, one_each])
    return None


def _among(values: Tensor, others: Tensor) -> Tensor:
    """(k,) bool: which of `values` are among `others`."""
    if not len(others) or not len(values):
        return torch.zeros(len(values), dtype=torch.bool, device=values.device)
    flat, known = values.flatten(1).double(), others.to(values.device).flatten(1).double()
    apart = torch.cdist(flat, known, p=float("inf")).min(dim=1).values
    return apart <= _SAME * known.abs().max()


def _joined(strong: Tensor | None, weak: Tensor | None, new: Tensor) -> Tensor | None:
    if strong is None or weak is None:
        return None
    return torch.cat([strong, weak[new.to(weak.device)].to(strong)])
