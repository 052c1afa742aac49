"""Levenberg and Marquardt's way to places in a span; a start may run away from all of them."""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.attacks.reading.unmixing.descent import descended, tangent_of


class Squares:
    """r(a) = (a - 1)^2 in each value, and no number at all beyond 100."""

    tangent = tangent_of(torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64))
    size = 9

    def at(self, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        r = torch.where(a.abs() < 100, (a - 1).square(), torch.nan)
        return r, a, 2 * (a - 1)

    def normal(self, left: Tensor, values: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        jacobian = torch.diag_embed(torch.where(left.isnan(), torch.nan, state)) @ self.tangent
        return jacobian.mT @ jacobian, (jacobian.mT @ left.unsqueeze(2)).squeeze(2)


def test_a_start_without_numbers_ends_as_no_root_and_leaves_the_others_alone() -> None:
    starts = torch.tensor([[1.0, 2.0, 3.0], [1.0, 500.0, 0.0]], dtype=torch.float64)
    found = descended(Squares(), starts)
    assert float(found.residual[0]) < 1e-3
    assert bool(found.spread[0].isfinite())
    assert bool(found.spread[1].isinf())
    assert not bool(found.residual[1] < 1)
