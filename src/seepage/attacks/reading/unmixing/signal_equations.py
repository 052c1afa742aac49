"""An example as a root: its own backward signal must lie in the column space of its layer's gradient.

G = sum_b d_b [x_b, 1]^T, so every d_b lies in the span U of G's columns. But d follows from the example and
its label by the network that the server knows, d(a, y) at [x, 1] = V a. With its label y, an example is a
root of r(a) = (I - U U^T) d(a, y) / |d(a, y)|: as many equations as rows for u - 1 unknowns. No other layer
is needed, and what stands behind this one must only bend: behind a ReLU the signal depends on the example by
jumps, and by what the loss makes of it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.attacks.reading.unmixing.descent import tangent_of
from seepage.attacks.reading.unmixing.mixture import Mixture
from seepage.attacks.reading.unmixing.polish import unit
from seepage.models.curvature import SignalCurvature


class SignalEquations:
    """For one label; as many rows as the mixture has, their numbers in `index` (r,)."""

    def __init__(self, mixture: Mixture, curvature: SignalCurvature, label: int, index: Tensor) -> None:
        self.gates = mixture.gates * mixture.gate_size
        self.directions, self.index = mixture.directions, index
        self.curvature, self.label = curvature, label
        self.tangent = tangent_of(mixture.ones)
        self.along = self.gates @ self.tangent  # (N, u - 1)
        self.size = self.along.numel()

    def at(self, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """r (t, r), d (t, r) and the layer's outputs (t, N)."""
        outputs = a @ self.gates.T
        d = self.curvature.at(outputs, self.label)[0][:, self.index]
        return self._outside(unit(d)), d, outputs

    def normal(self, left: Tensor, values: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """J^T J (t, u - 1, u - 1) and J^T r (t, u - 1)."""
        size = values.norm(dim=1).clamp_min(torch.finfo(values.dtype).tiny)[:, None, None]
        moved = self.curvature.at(state, self.label, self.along)[1][:, self.index] / size
        own = unit(values).unsqueeze(2)
        moved = moved - own * (own.transpose(1, 2) @ moved)  # of d / |d|
        moved = moved - self.directions @ (self.directions.T @ moved)
        return moved.transpose(1, 2) @ moved, (moved.transpose(1, 2) @ left.unsqueeze(2)).squeeze(2)

    def blurred(self, state: Tensor, values: Tensor, each: Tensor) -> Tensor:
        """(t,) by how much r moves where the layer's outputs are off by `each` (N,) at random."""
        chance = torch.randn(len(each), 1, generator=torch.Generator().manual_seed(0), dtype=each.dtype)
        moved = self.curvature.at(state, self.label, each.unsqueeze(1) * chance.to(each))[1]
        off: Tensor = moved[:, self.index, 0].norm(dim=1) / values.norm(dim=1)
        return off

    def _outside(self, d: Tensor) -> Tensor:
        return d - (d @ self.directions) @ self.directions.T
