"""The last two: what is unknown lies on a line, along which the network has only so many patterns."""

from __future__ import annotations

import torch
from torch import Tensor


def along_the_line(gates: Tensor, ones: Tensor, span: Tensor) -> Tensor:
    """(up to r + 1, u): one a for each pattern of gates (r, u) on the line a ones = 1 in the span (u, 2).

    >>> gates = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, -2.0]])
    >>> line = along_the_line(gates, torch.tensor([0.0, 0.0, 1.0]), torch.eye(3)[:, [0, 2]])
    >>> (line @ gates.T > 0).tolist()
    [[False, False], [True, False], [True, True]]
    """
    level = span.T @ ones  # (2,)
    middle = level / (level @ level)
    along = torch.stack([level[1], -level[0]]) / level.norm()
    sides = gates @ span
    crossings = -(sides @ middle) / (sides @ along)  # where each neuron switches
    crossings = crossings[crossings.isfinite()].sort().values
    reach = crossings.abs().amax() if len(crossings) else torch.ones_like(level[0])
    ends = torch.cat([-2 * reach.reshape(1) - 1, crossings, 2 * reach.reshape(1) + 1])
    between = (ends[1:] + ends[:-1]) / 2
    points: Tensor = (middle + between.unsqueeze(1) * along) @ span.T
    return points
