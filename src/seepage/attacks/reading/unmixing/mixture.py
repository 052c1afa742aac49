"""A residual of u unknown examples in the coordinates that unmixing works in.

[G_w | G_b] = U S V^T has rank u. Example b is a vector a_b of u numbers, [x_b, 1] = V a_b. Its backward
signal is U q_b with q_b = S c_b, where the c_b are the columns of A^-T: a_b c_b' = 0 for any two of them.
What is known of the layer, [W | b], acts on a by the gates P = [W | b] V. If [G_w | G_b] is the change of
[W | b] over several local steps, the gates change by U S, and an example's signal is 0 where it was off in
every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.reading.peeling.tolerances import SURE

Columns = Callable[[], Iterable[Tensor]]
"""The columns of a matrix (r, m), some at a time, as often as they are asked for: it is never
there as a whole."""

ROWS_EACH = 4
"""Rows for each unknown example below which no search is tried. Cost: with half of the neurons active the
search ends between 5 and 8 of them (1000 rows: all of 128 examples in one batch, none of 192)."""
_GAP = 30.0
"""Factor between the last singular value of the examples and the first one of the rounding. Tested:
test_constants_of_reading_lie_on_a_plateau."""


@dataclass(frozen=True)
class Mixture:
    """All in double precision."""

    directions: Tensor
    """(r, u) U"""
    sizes: Tensor
    """(u,) S"""
    gates: Tensor
    """(r, u) P, divided by `gate_size` to have a root mean square of 1."""
    gate_size: float
    ones: Tensor
    """(u,) the last row of V: a with a ones = 1 is an example."""
    noise: Tensor
    """(r,) root mean square of what noise adds to a row of the residual in any one direction."""
    made_up: Tensor
    """(t, u) made-up inputs, as far as they lie in the examples' span."""
    reach: float
    """Mean square of a made-up [x, 1]."""
    columns: Columns
    moved: float = 0.0
    """How many U S the gates changed by while the client trained; `gates` are those halfway. 0: one step."""

    @property
    def unknown(self) -> int:
        return len(self.sizes)

    @property
    def rows(self) -> int:
        return len(self.noise)

    def swings(self, a: Tensor) -> Tensor:
        """(t, r) bool: neurons that a (t, u) may have crossed while they moved: nearer to 0 than they did."""
        if self.moved == 0:
            return torch.zeros(len(a), self.rows, dtype=torch.bool, device=a.device)
        change = self.moved * (a * self.sizes) @ self.directions.T
        swings: Tensor = (a @ self.gates.T).abs() <= change.abs()
        return swings

    def patterns(self, a: Tensor) -> Tensor:
        """(t, r) bool: neurons that a (t, u) may have switched on in some step; the others send 0."""
        on: Tensor = (a @ self.gates.T > 0) | self.swings(a)
        return on

    def agreement(self, on: Tensor, a: Tensor) -> Tensor:
        """(t,) share of the rows that a (t, u) switches as `on` (t, r) says, in some step."""
        return (((a @ self.gates.T > 0) == on) | self.swings(a)).double().mean(1)

    def floor(self, q: Tensor) -> Tensor:
        """(t, r) what noise leaves of the zeros of U q = G V c, c = q / S."""
        size = (q / self.sizes).norm(dim=1, keepdim=True)
        left: Tensor = SURE * size * self.noise
        return left

    def examples(self, coefficients: Tensor) -> Tensor:
        """(k, m): x of [x, 1] = V a for coefficients (k, u) with a ones = 1; one pass over the columns."""
        back = (coefficients / self.sizes) @ self.directions.T  # a S^-1 U^T
        return torch.cat([back @ part.double() for part in self.columns()], dim=1)


def mixture_of(
    columns: Columns,
    bias: Tensor,
    *,
    noise: Tensor,
    layer: tuple[Tensor, Tensor],
    made_up: Callable[[int], Tensor],
    rows_each: int = ROWS_EACH,
    moved: float = 0.0,
) -> Mixture | None:
    """Rows (r, m) and (r,) of a residual; None where their rank says no.

    noise: (r,) norm of each row's rounding; layer: weight (g, m) and bias (g,) at the rows that gates are
    wanted of; made_up: for u unknown examples, inputs of the layer (t, m); rows_each: rows that each unknown
    example must have; moved: how many of these rows the layer changed by.
    """
    ones = bias.unsqueeze(1).double()
    found = column_space(columns, ones, most=(len(ones) - 1) // rows_each)
    if found is None:
        return None
    directions, sizes, beyond, width = found
    back = directions / sizes  # U S^-1, so that V = G^T back
    last = (ones.T @ back).squeeze(0)
    weight, constant = layer
    inputs = made_up(len(sizes))
    gates = constant.double().unsqueeze(1) * last
    starts = last.repeat(len(inputs), 1)
    at = 0
    for part in columns():
        v = part.double().T @ back  # (some columns, u)
        here = slice(at, at + len(v))
        gates += weight[:, here].double() @ v
        starts += inputs[:, here].double() @ v
        at += len(v)
    gate_size = gates.square().mean().sqrt()
    return Mixture(
        directions=directions,
        sizes=sizes,
        gates=gates / gate_size,
        gate_size=float(gate_size),
        ones=last,
        noise=torch.maximum(noise.double() / width**0.5, beyond / (len(noise) ** 0.5 + width**0.5)),
        made_up=starts,
        reach=float(inputs.double().square().sum(1).mean()) + 1.0,
        columns=columns,
        moved=moved / float(gate_size),
    )


def column_space(columns: Columns, bias: Tensor, *, most: int) -> tuple[Tensor, Tensor, Tensor, int] | None:
    """U (r, u), S (u,), the first singular value beyond them and the number of columns; u is `most` at most.

    None where no gap parts examples from rounding.
    """
    gram, width = bias @ bias.T, 1
    for part in columns():
        wide = part.double()
        gram.addmm_(wide, wide.T)
        width += wide.shape[1]
    values, vectors = torch.linalg.eigh(gram)
    sizes = values.flip(0).clamp_min(0).sqrt()
    # As many dimensions as columns are what noise fills: nothing to be told.
    top = min(most, width - 2)
    if top < 1 or sizes[0] == 0:
        return None
    drop = sizes[:top] / sizes[1 : top + 1].clamp_min(1e-9 * float(sizes[0]))
    falls = (drop >= _GAP).nonzero().squeeze(1)
    if len(falls) == 0:
        return None
    # The last one: an example that a trained network predicts well may be a thousandth of the others.
    rank = int(falls[-1]) + 1
    return vectors[:, -rank:].flip(1), sizes[:rank], sizes[rank], width
