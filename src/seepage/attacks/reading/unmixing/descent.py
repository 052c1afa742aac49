"""From a start to an example: what the next layer reads of it must lie in that layer's span.

h(a) = f([W | b] V a) is what the next layer reads of a, where f acts on each neuron by itself. The rows of
that layer's gradient span a space H of u dimensions in which every example's [h, 1] lies. So an example is a
root of r(a) = (I - H H^T) [h(a), 1], N equations for u - 1 unknowns, and needs no other example to be known.
Levenberg's and Marquardt's method, many starts at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.models.between import Between

_STEPS = 40
"""Steps from a start. Cost: those that reach an example need 8 to 20."""
_DAMPING, _SMALLER, _LARGER = 1e-2, 0.3, 4.0
"""Of the mean of the normal matrix' diagonal at the start, and its factor after a step that helps and after
one that does not."""
_DAMPINGS = (1e-9, 1e6)
_SETTLED = 1e-12
"""Share of the residual's square by which a step must make it smaller to go on."""
_MOST_VALUES = 1 << 23
"""Of the Jacobians held at a time. Cost: memory."""


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


@dataclass(frozen=True)
class Roots:
    """Where starts ended."""

    a: Tensor
    """(t, u)"""
    residual: Tensor
    """(t,) norm of r(a)"""
    read: Tensor
    """(t, N) h(a)"""
    spread: Tensor
    """(t,) how far a moves for errors of size 1 in each equation: sqrt(trace (J^T J)^-1)."""
    slopes: Tensor
    """(t, N) derivative of h by the layer's outputs."""


def descend(gates: Tensor, ones: Tensor, between: Between, span: Span, starts: Tensor) -> Roots:
    """Roots near starts (t, u) with a ones = 1; gates (N, u) are [W | b] V."""
    tangent = torch.linalg.qr(ones.unsqueeze(1), mode="complete").Q[:, 1:]  # (u, u - 1)
    each = max(1, _MOST_VALUES // max(1, gates.numel()))
    parts = [_descended(gates, tangent, between, span, some) for some in starts.split(each)]
    return Roots(**{name: torch.cat([getattr(part, name) for part in parts]) for name in vars(parts[0])})


class _Equations:
    """r(a), and its normal equations along the tangent (u, u - 1) of a ones = 1."""

    def __init__(self, gates: Tensor, tangent: Tensor, between: Between, span: Span) -> None:
        self.gates, self.between, self.span = gates, between, span
        self.along = gates @ tangent  # (N, u - 1)

    def at(self, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """r (t, N + 1), h (t, N) and the slopes of f (t, N)."""
        read, slopes = self.between.with_slopes(a @ self.gates.T)
        whole = torch.cat([read, torch.full_like(read[:, :1], self.span.constant)], dim=1)
        basis = self.span.basis
        return whole - (whole @ basis) @ basis.T, read, slopes

    def normal(self, left: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
        """J^T J (t, u - 1, u - 1) and J^T r (t, u - 1); (I - H H^T) is its own square."""
        moved = slopes.unsqueeze(2) * self.along  # (t, N, u - 1)
        inside = self.span.basis[:-1].T @ moved  # (t, v, u - 1)
        square = moved.transpose(1, 2) @ moved - inside.transpose(1, 2) @ inside
        return square, (moved.transpose(1, 2) @ left[:, :-1].unsqueeze(2)).squeeze(2)


def _descended(gates: Tensor, tangent: Tensor, between: Between, span: Span, starts: Tensor) -> Roots:
    equations = _Equations(gates, tangent, between, span)
    a, eye = starts, torch.eye(tangent.shape[1]).to(starts)
    left, read, slopes = equations.at(a)
    objective = left.square().sum(1)
    damping = torch.full_like(objective, _DAMPING)
    square, slope = equations.normal(left, slopes)
    for _ in range(_STEPS):
        typical = square.diagonal(dim1=1, dim2=2).mean(1)
        damped = square + (damping * typical).clamp_min(1e-300)[:, None, None] * eye
        step, failed = torch.linalg.solve_ex(damped, slope)
        moved = a - torch.where((failed == 0).unsqueeze(1), step, 0.0) @ tangent.T
        new_left, new_read, new_slopes = equations.at(moved)
        new = new_left.square().sum(1)
        better = new < objective
        going = (new < (1 - _SETTLED) * objective) | (~better & (damping < 1))
        keep = better.unsqueeze(1)
        a, left = torch.where(keep, moved, a), torch.where(keep, new_left, left)
        read, slopes = torch.where(keep, new_read, read), torch.where(keep, new_slopes, slopes)
        objective = torch.where(better, new, objective)
        damping = torch.where(better, damping * _SMALLER, damping * _LARGER).clamp(*_DAMPINGS)
        square, slope = equations.normal(left, slopes)
        if not bool(going.any()):
            break
    spread = torch.linalg.eigvalsh(square).clamp_min(1e-300).reciprocal().sum(1).sqrt()
    return Roots(a, objective.sqrt(), read, spread, slopes)
