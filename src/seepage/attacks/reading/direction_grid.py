"""The length of a direction whose values must be whole numbers: rows of a layer without a bias.

A row that one example activates is c * x, and nothing says what c is. But pixels are whole numbers of grey
steps: with v = row / largest, q * v is whole everywhere where q is the largest pixel's grey level. For
anything else, a mixture among it, no q up to the number of levels will do.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.attacks.reading.peeling.tolerances import BEYOND

LEVELS = (16, 255)
"""Grey levels tried. Derived: scikit-learn's digits have 16, pictures of 8 bits 255."""
_PROBES = 64
"""Values of a row that all q are tried on. Cost: the one that fits is then tried on all."""
_DIFFERENT = 10
"""Different values below the largest that must be whole. Derived: a picture of which all are multiples of
some number, and that is thus taken for a darker one, is as rare as 2 ** -10 of arbitrary ones; a mixture,
which is whole within the rounding of float32 by chance, as 1e-3 ** 10."""
_SETTLED = 0.1
"""Steps that it may be off at most. Derived: with coarser rounding, more than a fifth of the values that are
not whole look so."""
_MOST = 0.9
"""Share of the different values that are whole for a smaller q, from which on the others are taken for where
two that are nearly alike differ: twice that q makes the middle of two neighbours whole. Derived: half of a
picture's own values are whole for half its q; nine of ten by chance with probability 0.01 for 10 values,
1e-11 for 64."""
_ROWS = 64
"""Rows at a time. Cost: memory."""


def grey_levels(rows: Tensor, relative: float) -> Tensor:
    """(r,) grey level of the largest value of each row (r, m), none negative; 0 where no grid fits.

    relative: error of each value, as a share of it.

    >>> x = torch.randint(0, 200, (1, 300), generator=torch.Generator().manual_seed(0)).float()
    >>> found = grey_levels(torch.cat([0.37 * x, x + 0.4 * x.roll(1)]), 1e-7)
    >>> found.tolist() == [x.max(), 0]
    True
    """
    parts = [_some(part.double(), relative) for part in rows.split(_ROWS)]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.long, device=rows.device)


def _some(rows: Tensor, relative: float) -> Tensor:
    top = rows.amax(1, keepdim=True)
    unit = rows / top.clamp_min(torch.finfo(rows.dtype).tiny)  # (r, m), largest 1
    probes, telling = _different_values(unit)
    q = torch.arange(1, LEVELS[-1] + 1, device=rows.device, dtype=rows.dtype)  # (Q,)
    scaled = probes.unsqueeze(1) * q.view(1, -1, 1)  # (r, Q, probes)
    whole = (scaled - scaled.round()).abs() <= _slack(scaled, relative)
    whole &= (scaled >= 0.5) & telling.unsqueeze(1)
    count = telling.sum(1, keepdim=True)  # (r, 1)
    fits = whole.sum(2) == count
    nearly = whole.sum(2) >= _MOST * count
    best = fits.int().argmax(1)  # the smallest q that fits
    spoiled = nearly.int().argmax(1) < best
    level = q[best]
    everywhere = unit * level.unsqueeze(1)
    off = (everywhere - everywhere.round()).abs()
    ok = (off <= _slack(everywhere, relative)).all(1) & fits.any(1) & ~spoiled
    ok &= (count.squeeze(1) >= _DIFFERENT) & (top.squeeze(1) > 0)
    ok &= BEYOND * 2 * relative * level <= _SETTLED
    return torch.where(ok, level, torch.zeros_like(level)).long()


def _slack(values: Tensor, relative: float) -> Tensor:
    """Both the value and the largest one, which it was divided by, are rounded."""
    return BEYOND * 2 * relative * values.clamp_min(1.0)


def _different_values(unit: Tensor) -> tuple[Tensor, Tensor]:
    """(r, p) values spread over those of each row, and which of them are different ones below the largest."""
    ordered = unit.sort(dim=1).values
    step = 1e-3 / LEVELS[-1]
    new = ordered.diff(dim=1, prepend=ordered.new_zeros(len(ordered), 1)) > step
    new &= (ordered > step) & (ordered < 1 - step)
    # Different values first, evenly picked among them.
    place = new.cumsum(1) * new  # 1, 2, ... at each different value
    count = new.sum(1, keepdim=True)
    wanted = torch.arange(1, _PROBES + 1, device=unit.device).unsqueeze(0)
    picked = torch.where(count <= _PROBES, wanted, (wanted * count) // _PROBES)  # ordinal numbers
    values = ordered.new_zeros(len(ordered), ordered.shape[1] + 1)
    values.scatter_(1, place, torch.where(new, ordered, torch.zeros_like(ordered)))
    telling = picked <= count
    return values.gather(1, picked.clamp(max=ordered.shape[1])), telling
