"""Whether values lie on a grid of levels, as pixels do, and the values of a mixture do not."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.reading.peeling.tolerances import BEYOND, SURE

_ON_GRID = 0.1
"""Share of a step within which a value counts as on the grid. Derived: one in five of a mixture's values lies
there by chance."""
_GRID_VALUES = 10
"""*Different* values inside the range that must lie on the grid. Derived: 0.2 ** 10 is the chance of a
mixture. Equal ones are no new evidence: all white pixels of a mixture have the same value."""
_FEW_OFF = 0.02
"""Share of the values that may lie beside the grid. Tested: test_constants_of_reading_lie_on_a_plateau."""
_WORST_OFF = 0.35
"""Share of a step that no value may be off. Derived: from half a step on it would be rounded to the wrong
one; noise of a tenth of a step exceeds 0.35 in one of 2,000 values, and half a step in one of two million."""
_MANY_VALUES = 60
"""Different values within `_WORST_OFF` that prove a grid. Derived: 0.7 ** 60 is the chance of a mixture."""
_MEAN_OFF = 0.12
"""Share of a step that they may be off on average. Derived: values of a finer grid (thirds of a step: the
mean of three 8-bit channels) also stay within `_WORST_OFF`, but are off by 0.22 on average; normal noise that
stays within it, by 0.35 / 3 or less."""
_MOST_ON = 0.6
"""Share of the values on the grid from which on the data are taken to be written in it. Derived: midway
between the fifth that lies there by chance and all."""


@dataclass(frozen=True)
class OnGrid:
    """What a grid says about readings, all (k,)."""

    exact: Tensor
    """bool: on the grid."""
    undecided: Tensor
    """bool: too few different values inside the range to tell."""
    spoiled: Tensor
    """bool: most values lie on it, but not all."""
    chance: Tensor
    """That a mixture of nearly alike ones which is read as finely as this lies on the grid by accident."""


def on_grid(unit: Tensor, levels: int, bound: Tensor | float, noise: Tensor | float = 0.0) -> OnGrid:
    """Readings (k, m) in [0, 1] on the grid of k / levels.

    bound: what the update's rounding may have added to any value; noise: root mean square of what computing
    may have added, which the examples that were taken away before bring along.
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
    # Values that are off by more are evidence only if they are off each in its own way, as noise is. A few,
    # or many that are off by the same, are where two that are nearly alike differ. One number, the weight of
    # the two, puts them all there, and near a whole number of steps in one of five mixtures: x + 2 (y - x).
    rounding = torch.maximum(BEYOND * steps_off, SURE * levels * torch.as_tensor(noise).to(steps_off))
    beyond = _different(far, rounding)
    settled = settled & ((beyond == 0) | (beyond >= _GRID_VALUES))
    spoiled = (different >= _GRID_VALUES) & (off < (1 - _MOST_ON) * inside.sum(1))
    exact = on & (far <= _WORST_OFF).all(1) & settled
    chance = (2 * rounding).clamp(max=1.0).expand(len(unit))
    return OnGrid(exact, different < _GRID_VALUES, spoiled & ~exact, chance)


def _different(far: Tensor, least: Tensor) -> Tensor:
    """(k,) how many different distances (k, m) there are beyond `least` (k,), told apart by as much."""
    width = least.to(far).clamp_min(torch.finfo(far.dtype).tiny).reshape(-1, 1)
    ordered = (far / width).floor_().sort(dim=1).values  # 0: within `least`
    first = (ordered[:, 0] > 0).long()
    return first + (ordered.diff(dim=1) > 0).sum(1)
