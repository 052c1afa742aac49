"""How long a direction is whose values are pixels: those must be whole numbers of grey steps, from 0 on.

A row of a layer without a bias is c (x - mean) / std of a raw picture x, with nobody knowing c. Within one
channel the difference of the largest and the smallest value is a whole number q of grey steps, so c is one of
some hundred; the right one makes every value whole and puts it into the range. With a mean, twice the right
length fails too, for the mean is no whole number of steps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.attacks.reading.direction_grid import LEVELS
from seepage.attacks.reading.peeling.tolerances import BEYOND
from seepage.core.types import InputSpec

_PROBES = 48
"""Values that all lengths are tried on. Cost: the one that fits is then tried on all."""
_DIFFERENT = 10
"""Different values that must be whole. Derived: as `direction_grid` has it."""
_SETTLED = 0.05
"""Grey steps that rounding may move a value by. Derived: one in ten of a mixture's values is as near."""
_ROWS = 32
"""Directions at a time. Cost: memory."""


def grid_values(directions: Tensor, noise: Tensor, spec: InputSpec) -> tuple[Tensor, Tensor]:
    """(k, m) pictures, as the model is fed them, and (k,) bool: those that lie on a grid at some length.

    directions: (k, m) each up to a factor of either sign; noise: (k,) root mean square of a value's error.

    >>> from seepage.core.types import Modality
    >>> spec = InputSpec(modality=Modality.IMAGE, shape=(1, 4, 4), num_classes=2, mean=(0.4,), std=(0.3,))
    >>> x = torch.randint(0, 256, (2, 16), generator=torch.Generator().manual_seed(0)) / 255
    >>> fed = spec.to_model(x.reshape(2, 1, 4, 4)).flatten(1)
    >>> mixed = torch.stack([-0.37 * fed[0], fed[0] + 0.21 * fed[1]])
    >>> values, exact = grid_values(mixed, torch.full((2,), 1e-8), spec)
    >>> exact.tolist(), torch.allclose(values[0], fed[0], atol=1e-6)
    ([True, False], True)
    """
    best, most = (directions, torch.zeros(len(directions), dtype=torch.bool, device=directions.device)), -1
    for levels in reversed(LEVELS):
        parts = [
            _some(d.double(), n.double(), spec, levels)
            for d, n in zip(directions.split(_ROWS), noise.split(_ROWS), strict=True)
        ]
        if parts and (count := sum(int(p[1].sum()) for p in parts)) > most:
            values = torch.cat([p[0] for p in parts]).to(directions)
            best, most = (values, torch.cat([p[1] for p in parts])), count
    return best


def _some(directions: Tensor, noise: Tensor, spec: InputSpec, levels: int) -> tuple[Tensor, Tensor]:
    assert spec.value_range is not None
    low, high = spec.value_range
    zero = torch.zeros(1, *spec.shape, dtype=torch.float64, device=directions.device)
    offset = (spec.to_raw(zero).flatten() - low) / (high - low) * levels  # (m,) grey steps of a 0
    slope = spec.to_raw(zero + 1).flatten() / (high - low) * levels - offset - low / (high - low) * levels
    w = directions * slope  # (r, m): steps = w / c + offset
    groups = w.reshape(len(w), 1 if spec.mean is None else len(spec.mean), -1)
    spread = (groups.amax(2) - groups.amin(2)).amax(1)  # (r,)
    q = torch.arange(1, levels + 1, dtype=torch.float64, device=w.device)
    lengths = torch.cat([q, -q]) / spread.clamp_min(torch.finfo(torch.float64).tiny).unsqueeze(1)  # (r, 2 Q)
    # Evenly over the ordered values: different ones, the extremes among them.
    order = w.argsort(dim=1)
    at = order[:, torch.linspace(0, w.shape[1] - 1, min(_PROBES, w.shape[1])).long()]
    off = BEYOND * noise.unsqueeze(1) * slope.abs().max() * lengths.abs()  # (r, 2 Q) of a value, in steps
    probes = w.gather(1, at).unsqueeze(1) * lengths.unsqueeze(2) + offset[at].unsqueeze(1)  # (r, 2 Q, p)
    fits = _whole(probes, off.clamp_min(1e-6), levels).all(2) & (off <= _SETTLED)
    smallest = torch.where(fits, lengths.abs(), torch.inf).argmin(1)
    chosen = lengths.gather(1, smallest.unsqueeze(1))
    steps = w * chosen + offset
    limit = off.gather(1, smallest.unsqueeze(1)).clamp_min(1e-6)
    nearest = steps.round().clamp(0, levels)
    seen = torch.zeros(len(w), levels + 1, dtype=torch.bool, device=w.device).scatter_(
        1, nearest.long(), True
    )
    exact = fits.any(1) & _whole(steps.unsqueeze(1), limit, levels).all(2).squeeze(1)
    exact &= (seen.sum(1) >= _DIFFERENT) & (spread > 0)
    raw = (nearest / levels * (high - low) + low).reshape(-1, *spec.shape)
    return torch.where(exact.unsqueeze(1), spec.to_model(raw).flatten(1), directions), exact


def _whole(steps: Tensor, off: Tensor, levels: int) -> Tensor:
    """(r, c, p) bool: whole to within `off` (r, c), and in the range."""
    limit = off.unsqueeze(2)
    near = (steps - steps.round()).abs() <= limit
    return near & (steps >= -limit) & (steps <= levels + limit)
