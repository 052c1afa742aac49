"""From a start to an example: what the next layer reads of it must lie in that layer's span.

h(a) = f([W | b] V a) is what the next layer reads of a, where f acts on each neuron by itself. The rows of
that layer's gradient span a space H of u dimensions in which every example's [h, 1] lies. So an example is a
root of r(a) = (I - H H^T) [h(a), 1], N equations for u - 1 unknowns, and needs no other example to be known.
Levenberg's and Marquardt's method, many starts at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.reading.peeling.tolerances import COARSE
from seepage.models.between import Between
from seepage.models.precision import EXACT

_STEPS = 40
"""Steps from a start. Cost: those that reach an example need 8 to 20."""
_DAMPING, _SMALLER, _LARGER = 1e-2, 0.3, 4.0
"""Of the mean of the normal matrix' diagonal at the start, and its factor after a step that helps and after
one that does not. Tested: test_constants_of_the_descent_lie_on_a_plateau."""
_DAMPINGS = (1e-9, 1e6)
"""Its bounds. Derived: below, double precision has no digits for it; above, a step moves nothing."""
_SETTLED = 1e-2
"""Share of the residual's square by which a step must make it smaller to go on: near an example the steps
converge quadratically. Tested: test_constants_of_the_descent_lie_on_a_plateau."""
_NEURONS_EACH = 3
"""Neurons for each dimension of both spans that lead to an example; all of them say where it is exactly.
Tested: test_constants_of_the_descent_lie_on_a_plateau."""
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

    def select(self, index: Tensor) -> Roots:
        return Roots(**{name: values[index] for name, values in vars(self).items()})

    @staticmethod
    def joined(parts: Sequence[Roots]) -> Roots:
        return Roots(**{name: torch.cat([getattr(part, name) for part in parts]) for name in vars(parts[0])})


def descend(
    gates: Tensor, ones: Tensor, between: Between, span: Span, starts: Tensor, generator: torch.Generator
) -> Roots:
    """Roots near starts (t, u) with a ones = 1; gates (N, u) are [W | b] V.

    First by some of the neurons, then by all of them.
    """
    tangent = torch.linalg.qr(ones.unsqueeze(1), mode="complete").Q[:, 1:]  # (u, u - 1)
    most = _NEURONS_EACH * (len(ones) + span.basis.shape[1])
    if most < len(gates):
        some = torch.randperm(len(gates), generator=generator)[:most].to(gates.device)
        rough = _Equations(gates, tangent, between, span, some)
        before, near = rough.at(starts)[0].norm(dim=1), _all_descended(rough, starts)
        reached = near.a[near.residual <= COARSE * before]
        starts = reached[distinct(reached, apart=EXACT * reached.norm(dim=1))]
    return _all_descended(_Equations(gates, tangent, between, span), starts)


def distinct(a: Tensor, apart: Tensor) -> Tensor:
    """Indices of the points (t, u) that are not within `apart` (t,) of an earlier one."""
    near = torch.cdist(a, a, compute_mode="donot_use_mm_for_euclid_dist") <= apart.unsqueeze(1)
    return (~(near & torch.ones_like(near).tril(-1)).any(1)).nonzero().squeeze(1)


def _all_descended(equations: _Equations, starts: Tensor) -> Roots:
    each = max(1, _MOST_VALUES // max(1, equations.along.numel()))
    return Roots.joined([_descended(equations, some) for some in starts.split(each)])


class _Equations:
    """r(a) at some of the neurons, and its normal equations along the tangent (u, u - 1) of a ones = 1."""

    def __init__(
        self, gates: Tensor, tangent: Tensor, between: Between, span: Span, some: Tensor | None = None
    ) -> None:
        self.gates, self.tangent, self.between, self.constant = gates, tangent, between, span.constant
        self.some = torch.arange(len(gates), device=gates.device) if some is None else some
        self.along = (gates @ tangent)[self.some]  # (n, u - 1)
        self.basis = span.basis
        if some is not None:
            self.basis = torch.linalg.qr(torch.cat([span.basis[some], span.basis[-1:]])).Q

    def at(self, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """r (t, n + 1), h (t, N) and the slopes of f (t, N)."""
        read, slopes = self.between.with_slopes(a @ self.gates.T)
        whole = torch.cat([read[:, self.some], torch.full_like(read[:, :1], self.constant)], dim=1)
        return whole - (whole @ self.basis) @ self.basis.T, read, slopes

    def normal(self, left: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
        """J^T J (t, u - 1, u - 1) and J^T r (t, u - 1); (I - H H^T) is its own square."""
        moved = slopes[:, self.some].unsqueeze(2) * self.along  # (t, n, u - 1)
        inside = self.basis[:-1].T @ moved  # (t, v, u - 1)
        square = moved.transpose(1, 2) @ moved - inside.transpose(1, 2) @ inside
        return square, (moved.transpose(1, 2) @ left[:, :-1].unsqueeze(2)).squeeze(2)


def _descended(equations: _Equations, starts: Tensor) -> Roots:
    a, live = starts.clone(), torch.arange(len(starts), device=starts.device)
    left, read, slopes = equations.at(a)
    objective = left.square().sum(1)
    damping = torch.full_like(objective, _DAMPING)
    eye = torch.eye(equations.tangent.shape[1]).to(starts)
    for _ in range(_STEPS):
        square, slope = equations.normal(left[live], slopes[live])
        typical = square.diagonal(dim1=1, dim2=2).mean(1)
        damped = square + (damping[live] * typical).clamp_min(1e-300)[:, None, None] * eye
        step, failed = torch.linalg.solve_ex(damped, slope)
        moved = a[live] - torch.where((failed == 0).unsqueeze(1), step, 0.0) @ equations.tangent.T
        new_left, new_read, new_slopes = equations.at(moved)
        new, before = new_left.square().sum(1), objective[live]
        better = new < before
        taken = live[better]
        a[taken], left[taken], objective[taken] = moved[better], new_left[better], new[better]
        read[taken], slopes[taken] = new_read[better], new_slopes[better]
        factor = torch.where(better, _SMALLER, _LARGER).to(damping)
        damping[live] = (damping[live] * factor).clamp(*_DAMPINGS)
        going = (new < (1 - _SETTLED) * before) | (~better & (damping[live] < 1))
        live = live[going]
        if len(live) == 0:
            break
    spread = torch.zeros_like(objective)
    for some in torch.arange(len(a), device=a.device).split(8):
        square, _ = equations.normal(left[some], slopes[some])
        spread[some] = torch.linalg.eigvalsh(square).clamp_min(1e-300).reciprocal().sum(1).sqrt()
    return Roots(a, objective.sqrt(), read, spread, slopes)
