"""Two readings of one example's gradient (Boenisch et al. 2021, Figure 4): attacks of an audit."""

from __future__ import annotations

from torch import Tensor

from seepage.attacks.base import PerUpdateAttack
from seepage.core.types import Exchange, Knowledge, Reconstruction


class _OneExample(PerUpdateAttack):
    """Of the first dense layer's gradient, for one example."""

    def __init__(self, *, layer: str = "dense0") -> None:
        self.layer = layer

    def invert(self, exchange: Exchange, known: Knowledge) -> Reconstruction:
        tensors = exchange.update.tensors
        value = self.read(tensors[f"{self.layer}.weight"], tensors[f"{self.layer}.bias"])
        return Reconstruction(values=known.input.to_raw(value.reshape(1, *known.input.shape)))

    def read(self, weight: Tensor, bias: Tensor) -> Tensor:
        raise NotImplementedError


class StrongestRow(_OneExample):
    """The quotient of the row with the largest gradient of the bias (eq. 5), as the paper reads it."""

    def read(self, weight: Tensor, bias: Tensor) -> Tensor:
        row = int(bias.abs().argmax())
        return weight[row] / bias[row]


class PooledRows(_OneExample):
    """The least-squares estimate over all rows, which averages noise away."""

    def read(self, weight: Tensor, bias: Tensor) -> Tensor:
        return bias @ weight / bias.square().sum()  # argmin_x sum_i |G_w[i] - G_b[i] x|^2
