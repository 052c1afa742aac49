"""Whether an update is a difference of two sets of weights, told by the last bits of its numbers.

New and received weights are floating-point numbers, so their difference is a whole number of units in the
last place of the smaller one: a float32 weight of 0.05 moves in steps of 3.7e-9. By Sterbenz's lemma the
difference of two such numbers within a factor of two is exact, whatever training led from one to the other. A
gradient is rounded to the last place of its own size and lies on that grid by chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

_SMALLER = 16
"""Entries that are smaller than their weight by this factor are looked at. Derived: a gradient's last place
is then four bits or more below the weight's, so that it lies on the weight's grid once in 16 times or
less."""
_FEWEST = 64
"""Such entries, without which nothing is said. Derived: all of them on the grid by chance has a probability
of 16 to the power of -64."""
_WHOLE = 0.99
"""Share of them on the grid. Derived: all, but for weights that a recorder or a filter touched."""
_ODD = 0.25
"""Share of them with the last bit set. Derived: half of a difference's, none of a gradient's that was rounded
to a coarser grid (16 bits, quantised). Tested: gradients of such kinds have at most 0.16."""


def is_a_difference(weights: Mapping[str, Tensor], update: Mapping[str, Tensor]) -> bool:
    """True where it lies on the grid of these weights; False where it does not, or too little can be seen.

    >>> w, gradient = torch.rand(1000), 1e-3 * torch.randn(1000)
    >>> is_a_difference({"w": w}, {"w": (w - 0.1 * gradient) - w}), is_a_difference({"w": w}, {"w": gradient})
    (True, False)
    """
    both = [(weights[name].detach().flatten(), update[name].flatten()) for name in update]
    return any(_on_grid(both, eps) for eps in _precisions([w for w, _ in both]))


def _precisions(weights: list[Tensor]) -> Iterator[float]:
    """Of the weights as they are stored, and of a narrower type that holds all of them."""
    for dtype in (None, torch.float16, torch.bfloat16):
        if dtype is None:
            yield torch.finfo(weights[0].dtype).eps
        elif all(torch.equal(w.to(dtype).to(w.dtype), w) for w in weights):
            yield torch.finfo(dtype).eps


def _on_grid(both: list[tuple[Tensor, Tensor]], eps: float) -> bool:
    whole = odd = seen = 0
    for weight, change in both:
        w, d = weight.double(), change.double()
        looked_at = (d != 0) & (d.abs() * _SMALLER <= w.abs())
        w, d = w[looked_at], d[looked_at]
        nearer_zero = torch.minimum(w.abs(), (w + d).abs())
        # frexp's mantissa is in [0.5, 1), so the unit in the last place is eps times half the power of two
        units = d / torch.ldexp(torch.full_like(d, eps / 2), nearer_zero.frexp()[1])
        is_whole = units == units.round()
        seen += len(d)
        whole += int(is_whole.sum())
        odd += int((is_whole & (units.abs() % 2 == 1)).sum())
    return seen >= _FEWEST and whole >= _WHOLE * seen and odd >= _ODD * seen
