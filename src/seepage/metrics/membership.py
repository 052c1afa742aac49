"""How well scores tell members from others.

The area under the ROC curve with its interval (DeLong et al. 1988), and the share of members found at a small
share of false alarms (Carlini et al. 2022).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.core.errors import DataError

_NORMAL = 1.959963984540054
"""Derived: the 97.5 % quantile of the normal distribution."""


@dataclass(frozen=True, kw_only=True)
class Roc:
    """Of m members and n others."""

    false_alarms: Tensor
    """Shares of others above each threshold, from none to all."""
    found: Tensor
    """Shares of members above the same thresholds."""
    area: float
    """The chance that a member scores higher than another; 0.5 is guessing."""
    interval: tuple[float, float]
    """95 %, for examples that are independent."""

    def found_at(self, rate: float) -> float:
        """Largest share of members found with at most this share of false alarms."""
        return float(self.found[self.false_alarms <= rate + 1e-12].max())


def roc(members: Tensor, others: Tensor) -> Roc:
    """From the scores of members (m,) and of others (n,), two of each at least.

    >>> judged = roc(torch.tensor([3.0, 2.0, 0.5]), torch.tensor([1.0, 0.0]))
    >>> round(judged.area, 3), judged.found_at(0.0)
    (0.833, 0.666...)
    """
    if min(len(members), len(others)) < 2:
        raise DataError("a ROC curve needs at least two members and two others.")
    members, others = members.double(), others.double()
    above = (members.unsqueeze(1) > others).double() + (members.unsqueeze(1) == others).double() / 2  # (m, n)
    area = float(above.mean())
    variance = above.mean(dim=1).var() / len(members) + above.mean(dim=0).var() / len(others)
    # on the scale of log odds, where it stays inside [0, 1]; half a pair more or less where none is confused
    least = 0.5 / above.numel()
    inside = min(max(area, least), 1 - least)
    spread = math.sqrt(float(variance)) / (inside * (1 - inside))
    middle = math.log(inside / (1 - inside))
    low, high = (1 / (1 + math.exp(-middle - side * _NORMAL * spread)) for side in (-1, 1))
    if float(variance) == 0.0:  # all above, or all alike: what the rule of three leaves open
        low, high = max(0.0, area - 3 / min(len(members), len(others))), min(1.0, area + 3 / len(others))
    levels = torch.cat([members, others]).unique().flip(0)
    return Roc(
        false_alarms=torch.cat(
            [torch.zeros(1), (others.unsqueeze(0) >= levels.unsqueeze(1)).double().mean(dim=1)]
        ),
        found=torch.cat([torch.zeros(1), (members.unsqueeze(0) >= levels.unsqueeze(1)).double().mean(dim=1)]),
        area=area,
        interval=(low, high),
    )
