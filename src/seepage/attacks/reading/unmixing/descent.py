"""From a start to an example: something that follows from it must lie in a span that the update shows.

An example is a root of r(a) = (I - H H^T) v(a), N equations for the u - 1 unknowns of a with a ones = 1, and
needs no other example to be known. What v and H are, `next_equations` and `signal_equations` say. Levenberg's
and Marquardt's method, many starts at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

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
_MOST_VALUES = 1 << 23
"""Of the Jacobians held at a time. Cost: memory."""


@dataclass(frozen=True)
class Roots:
    """Where starts ended."""

    a: Tensor
    """(t, u)"""
    residual: Tensor
    """(t,) norm of r(a)"""
    values: Tensor
    """(t, N) v(a)"""
    spread: Tensor
    """(t,) how far a moves for errors of size 1 in each equation: sqrt(trace (J^T J)^-1)."""
    state: Tensor
    """(t, N) what the derivative of v is computed from."""

    def select(self, index: Tensor) -> Roots:
        return Roots(**{name: values[index] for name, values in vars(self).items()})

    @staticmethod
    def joined(parts: Sequence[Roots]) -> Roots:
        return Roots(**{name: torch.cat([getattr(part, name) for part in parts]) for name in vars(parts[0])})


class Equations(Protocol):
    """r(a), and its normal equations along the tangent (u, u - 1) of a ones = 1."""

    tangent: Tensor
    size: int
    """Numbers of a Jacobian."""

    def at(self, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """r (t, n), v (t, N) and what its derivative is computed from (t, N)."""

    def normal(self, left: Tensor, values: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """J^T J (t, u - 1, u - 1) and J^T r (t, u - 1) where `at` gave these."""


def tangent_of(ones: Tensor) -> Tensor:
    """(u, u - 1) orthonormal: the directions in which a ones stays what it is."""
    tangent: Tensor = torch.linalg.qr(ones.unsqueeze(1), mode="complete").Q[:, 1:]
    return tangent


def distinct(a: Tensor, apart: Tensor) -> Tensor:
    """Indices of the points (t, u) that are not within `apart` (t,) of an earlier one."""
    near = torch.cdist(a, a, compute_mode="donot_use_mm_for_euclid_dist") <= apart.unsqueeze(1)
    return (~(near & torch.ones_like(near).tril(-1)).any(1)).nonzero().squeeze(1)


def descended(equations: Equations, starts: Tensor) -> Roots:
    """Where starts (t, u) end, some at a time."""
    each = max(1, _MOST_VALUES // max(1, equations.size))
    return Roots.joined([_descended(equations, some) for some in starts.split(each)])


def _descended(equations: Equations, starts: Tensor) -> Roots:
    a, live = starts.clone(), torch.arange(len(starts), device=starts.device)
    left, values, state = equations.at(a)
    objective = left.square().sum(1)
    damping = torch.full_like(objective, _DAMPING)
    eye = torch.eye(equations.tangent.shape[1]).to(starts)
    for _ in range(_STEPS):
        square, slope = equations.normal(left[live], values[live], state[live])
        typical = square.diagonal(dim1=1, dim2=2).mean(1)
        damped = square + (damping[live] * typical).clamp_min(1e-300)[:, None, None] * eye
        step, failed = torch.linalg.solve_ex(damped, slope)
        moved = a[live] - torch.where((failed == 0).unsqueeze(1), step, 0.0) @ equations.tangent.T
        new_left, new_values, new_state = equations.at(moved)
        new, before = new_left.square().sum(1), objective[live]
        better = new < before
        taken = live[better]
        a[taken], left[taken], objective[taken] = moved[better], new_left[better], new[better]
        values[taken], state[taken] = new_values[better], new_state[better]
        factor = torch.where(better, _SMALLER, _LARGER).to(damping)
        damping[live] = (damping[live] * factor).clamp(*_DAMPINGS)
        going = (new < (1 - _SETTLED) * before) | (~better & (damping[live] < 1))
        live = live[going]
        if len(live) == 0:
            break
    spread = torch.zeros_like(objective)
    for some in torch.arange(len(a), device=a.device).split(8):
        square, _ = equations.normal(left[some], values[some], state[some])
        there = square.isfinite().all(dim=2).all(dim=1)  # a start may run away from all examples
        sizes = torch.linalg.eigvalsh(torch.where(there[:, None, None], square, eye))
        known = sizes.clamp_min(1e-300).reciprocal().sum(1).sqrt()
        spread[some] = torch.where(there, known, torch.inf)
    return Roots(a, objective.sqrt(), values, spread, state)
