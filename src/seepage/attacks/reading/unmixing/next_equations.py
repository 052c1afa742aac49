"""An example as a root: what the next layer reads of it must lie in that layer's span.

h(a) = f([W | b] V a) is what the next layer reads of a, where f acts on each neuron by itself. The rows of
that layer's gradient span a space H of u dimensions in which every example's [h, 1] lies: an example is a
root of r(a) = (I - H H^T) [h(a), 1].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.reading.peeling.tolerances import COARSE
from seepage.attacks.reading.unmixing.descent import Roots, descended, distinct, tangent_of
from seepage.models.between import Between
from seepage.models.precision import EXACT

_NEURONS_EACH = 3
"""Neurons for each dimension of both spans that lead to an example; all of them say where it is exactly.
Tested: test_constants_of_the_descent_lie_on_a_plateau."""


@dataclass(frozen=True)
class Span:
    """What the next layer's gradient says about its inputs."""

    basis: Tensor
    """(N + 1, v) H, orthonormal; the last row is that of the constant, 0 where the layer has no bias."""
    sizes: Tensor
    """(v,) singular values."""
    noise: float
    """Root mean square of what rounding adds to each number of that gradient."""
    constant: float
    """1, or 0 where the layer has no bias."""


def descend(
    gates: Tensor,
    ones: Tensor,
    between: Between,
    span: Span,
    starts: Tensor,
    generator: torch.Generator | None,
) -> Roots:
    """Roots near starts (t, u) with a ones = 1; gates (N, u) are [W | b] V.

    First by some of the neurons, which `generator` draws, then by all of them; None: all at once, for starts
    that are near already.
    """
    tangent = tangent_of(ones)
    most = _NEURONS_EACH * (len(ones) + span.basis.shape[1])
    if generator is not None and most < len(gates):
        some = torch.randperm(len(gates), generator=generator)[:most].to(gates.device)
        rough = _Equations(gates, tangent, between, span, some)
        before, near = rough.at(starts)[0].norm(dim=1), descended(rough, starts)
        reached = near.a[near.residual <= COARSE * before]
        starts = reached[distinct(reached, apart=EXACT * reached.norm(dim=1))]
    return descended(_Equations(gates, tangent, between, span), starts)


class _Equations:
    """Of some of the neurons, or of all."""

    def __init__(
        self, gates: Tensor, tangent: Tensor, between: Between, span: Span, some: Tensor | None = None
    ) -> None:
        self.gates, self.tangent, self.between, self.constant = gates, tangent, between, span.constant
        self.some = torch.arange(len(gates), device=gates.device) if some is None else some
        self.along = (gates @ tangent)[self.some]  # (n, u - 1)
        self.size = self.along.numel()
        self.basis = span.basis
        if some is not None:
            self.basis = torch.linalg.qr(torch.cat([span.basis[some], span.basis[-1:]])).Q

    def at(self, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """r (t, n + 1), h (t, N) and the slopes of f (t, N)."""
        read, slopes = self.between.with_slopes(a @ self.gates.T)
        whole = torch.cat([read[:, self.some], torch.full_like(read[:, :1], self.constant)], dim=1)
        return whole - (whole @ self.basis) @ self.basis.T, read, slopes

    def normal(self, left: Tensor, values: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """J^T J (t, u - 1, u - 1) and J^T r (t, u - 1); (I - H H^T) is its own square."""
        moved = state[:, self.some].unsqueeze(2) * self.along  # (t, n, u - 1)
        inside = self.basis[:-1].T @ moved  # (t, v, u - 1)
        square = moved.transpose(1, 2) @ moved - inside.transpose(1, 2) @ inside
        return square, (moved.transpose(1, 2) @ left[:, :-1].unsqueeze(2)).squeeze(2)
