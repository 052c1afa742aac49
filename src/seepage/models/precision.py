"""How finely the numbers of an update are written: what its rounding alone may have changed.

An update that was cast to 16 bits on its way carries their rounding, whatever type it is stored in. Readings
are quotients of such numbers, so nobody can vouch for more digits than the format has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

EXACT = 1e-3
"""Largest error of a value that counts as exact, as a share of its range. Derived: half an 8-bit step is
1/510."""
_COARSER = (torch.bfloat16, torch.float16, torch.float32)
"""Formats that numbers of a wider type may have passed through; the coarsest first."""
_BLOCK = 1 << 18
"""Values compared at a time. Cost: 1 MB; most updates fail at once, and no copy of a large one is made."""


@dataclass(frozen=True)
class Precision:
    """A number v may be off by |v| * relative + absolute."""

    relative: float
    """Half a unit in the last place of a normal number: eps / 2."""
    absolute: float
    """Half the step between the smallest (subnormal) numbers."""

    @staticmethod
    def of_type(dtype: torch.dtype) -> Precision:
        info = torch.finfo(dtype)
        return Precision(info.eps / 2, info.smallest_normal * info.eps / 2)

    def of(self, numbers: Tensor) -> Tensor:
        """What each may be off by, in double precision."""
        return numbers.abs().double() * self.relative + self.absolute


def precision_of(tensors: Sequence[Tensor]) -> Precision:
    """The coarsest format that holds all of these numbers exactly; the type they come in, if no other does.

    >>> exact, cast = torch.tensor([0.1, 0.7]), torch.tensor([0.1, 0.7]).bfloat16().float()
    >>> precision_of([exact]).relative == 2**-24, precision_of([cast]).relative == 2**-8
    (True, True)
    """
    own = tensors[0].dtype
    finer = [dtype for dtype in _COARSER if torch.finfo(dtype).eps > torch.finfo(own).eps]
    return Precision.of_type(next((d for d in finer if all(_fits(t, d) for t in tensors)), own))


def _fits(tensor: Tensor, dtype: torch.dtype) -> bool:
    blocks = tensor.detach().reshape(-1).split(_BLOCK)
    return all(torch.equal(block.to(dtype).to(block.dtype), block) for block in blocks)
