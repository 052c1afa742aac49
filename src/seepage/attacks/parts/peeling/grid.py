"""Whether values lie on a grid of levels, as pixels do, and the values of a mixture do not."""

from __future__ import annotations

import torch
from torch import Tensor

_ON_GRID = 0.1
"""A value within this share of a step counts as on the grid: one in five of a mixture's do by chance."""
_GRID_VALUES = 10
"""*Different* values inside the range that must lie on the grid: 0.2 ** 10 is the chance of a mixture. Equal
ones are no new evidence: all white pixels of a mixture have the same value."""
_FEW_OFF = 0.02
_WORST_OFF = 0.35
"""No value may be further off: from half a step on it would be rounded to the wrong one."""
_MANY_VALUES = 60
"""So many different values within _WORST_OFF: 0.7 ** 60 is the chance of a mixture."""
_MEAN_OFF = 0.12
"""... and so near on average. Values of a finer grid (thirds of a step: mean of three 8-bit channels) also
stay within _WORST_OFF, but lie 0.22 of a step off on average; noise that may be rounded away stays below."""
_STANDS_OUT = 20.0
"""Times the mean distance from the grid that any value may be off: the largest of thousands of normal errors
is 5 times their mean, that of errors in the shape of another picture up to 10 times."""
_SURE = 10.0
"""Times the rounding that it may be off in any case: errors that are mostly 0 have a small mean."""
_MOST_ON = 0.6
"""Share of the values on the grid from which on the data are taken to be written in it: midway between the
fifth that lies there by chance and all."""


def on_grid(unit: Tensor, levels: int, bound: Tensor | float) -> tuple[Tensor, Tensor, Tensor]:
    """(k,) on the grid of k / levels; (k,) too few different values inside the range to tell; (k,) spoiled.

    bound: what rounding may have added to any value.
    """
    steps = unit * levels
    nearest = steps.round().clamp_(0, levels)
    far = (steps - nearest).abs_()
    inside = (nearest > 0) & (nearest < levels)
    off = (inside & (far > _ON_GRID)).sum(1)
    seen = torch.zeros(len(unit), levels + 1, dtype=torch.bool, device=unit.device)
    seen.scatter_(1, nearest.long(), True)
    different = seen[:, 1:-1].sum(1)
    on = (off <= _FEW_OFF * inside.sum(1)) & (different >= _GRID_VALUES)
    # Noisy readings: nearer than half a step everywhere is as telling if the values are many.
    on |= (different >= _MANY_VALUES) & ((far * inside).sum(1) <= _MEAN_OFF * inside.sum(1))
    steps_off = torch.as_tensor(bound, device=unit.device) * levels
    # What rounding moved further than this may have come from the next level, and still look near.
    settled = steps_off < 1 - _WORST_OFF
    # One that stands out among values that are otherwise nearly exact is no noise: it is where two that are
    # nearly alike differ, and their weights in the mixture put it anywhere.
    usual = (far * inside).sum(1) / inside.sum(1).clamp_min(1)
    settled = settled & (far.amax(1) <= torch.maximum(_STANDS_OUT * usual, _SURE * steps_off))
    spoiled = (different >= _GRID_VALUES) & (off < (1 - _MOST_ON) * inside.sum(1))
    return on & (far <= _WORST_OFF).all(1) & settled, different < _GRID_VALUES, spoiled
