"""The input of one layer from its output and its weight gradient: a linear least-squares problem.

With one example, patches P(x) of the input, pre-activations z and their gradient delta, a layer gives
    W P(x) + b = z             (forward equations: the weight constraints of Zhu & Blaschko 2021, Section 3)
    delta P(x)^T = dL/dW       (gradient equations: their gradient constraints)
both linear in x; a dense layer is one patch. Solved in float64 by conjugate gradients on the normal equations
(CGLS) with two products a step, or through singular values where the layer is small.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from seepage.attacks.closed_form.recursion.chain import Link

DENSE_UNKNOWNS = 256
"""Unknowns up to which the matrix is written out: then its rank is counted, not estimated. Cost: a
decomposition takes time with the cube."""
MAX_ENTRIES = 2**24
"""Entries of such a matrix. Cost: 128 MB in double precision."""
PROBES = 1
"""Random vectors from which a rank is estimated. Cost: each takes one more solution."""
LOST = 1e-2
"""Dimensions lost, as estimated from the probes, from which a layer counts as rank-deficient. Derived: of one
lost dimension a probe shows its square, 1 on average and below 0.01 in 8 % of cases; the solver's own error
is smaller."""


@dataclass(frozen=True)
class Solved:
    """A layer's input and how well the equations determine it."""

    values: Tensor
    """(1, *input_shape)"""
    seen: Tensor
    """(1, *input_shape) bool: some equation holds this value. Others reach no output and pass no gradient."""
    unknowns: int
    equations: int
    rank: float
    """Counted, or estimated from the part of a random input that the same solver finds back."""
    residual: float
    """Length of what the solution leaves unexplained, as a share of the right-hand side."""

    @property
    def deficient(self) -> bool:
        """Some of the layer's input cannot be told from the update."""
        return self.rank < self.unknowns - LOST

    @property
    def ambiguous(self) -> bool:
        """As `deficient`, but for values that no equation holds: for inner layers these do not matter."""
        return self.rank < int(self.seen.sum()) - LOST


class LayerSystem:
    """Forward and gradient equations of one layer, scaled to be equally noisy.

    forward: z comes from recovered features h(z), whose error is about the same everywhere; that of z is
        larger by 1 / h'(z), so the equation is multiplied by the slope h'(z), and saturated ones fade out.
    gradient: rows are divided by one common number, as the error of delta is about the same everywhere.
    """

    def __init__(
        self, link: Link, weight: Tensor, delta: Tensor, slope: Tensor, *, use_gradient: bool = True
    ) -> None:
        self.link = link
        self.weight = weight.flatten(1)  # (O, CK)
        self.delta = delta.reshape(len(weight), -1)  # (O, L)
        tiny = torch.finfo(weight.dtype).tiny
        slope = slope.reshape(len(weight), -1).abs()
        self.forward_scale = slope / (slope.amax() * self.weight.norm(dim=1).amax()).clamp_min(tiny)  # (O, L)
        longest = self.delta.norm(dim=1).amax()
        self.gradient_scale = 1.0 / float(longest) if use_gradient and float(longest) > tiny else 0.0

    def patches(self, values: Tensor) -> Tensor:
        """(B, *input_shape) -> (B, CK, L)"""
        if self.link.window is None:
            return values.unsqueeze(2)
        return F.unfold(values, **vars(self.link.window))

    def from_patches(self, patches: Tensor) -> Tensor:
        """The adjoint: (B, CK, L) -> (B, *input_shape), summing where patches overlap."""
        if self.link.window is None:
            return patches.squeeze(2)
        return F.fold(patches, self.link.input_shape[1:], **vars(self.link.window))

    def right_side(self, pre_activation: Tensor, bias: Tensor | float, gradient: Tensor) -> Tensor:
        """(1, equations): what `times` of the layer's input must be."""
        forward = self.forward_scale * (pre_activation.reshape_as(self.delta) - bias)
        return torch.cat([forward.flatten(), self.gradient_scale * gradient.flatten()]).unsqueeze(0)

    def times(self, values: Tensor) -> Tensor:
        """(B, *input_shape) -> (B, equations)"""
        patches = self.patches(values)
        forward = self.forward_scale * (self.weight @ patches)  # (B, O, L)
        gradient = self.gradient_scale * (self.delta @ patches.transpose(1, 2))  # (B, O, CK)
        return torch.cat([forward.flatten(1), gradient.flatten(1)], dim=1)

    def adjoint(self, equations: Tensor) -> Tensor:
        """(B, equations) -> (B, *input_shape)"""
        count = self.delta.numel()
        forward = equations[:, :count].reshape(-1, *self.delta.shape)
        gradient = equations[:, count:].reshape(-1, *self.weight.shape)
        patches = self.weight.T @ (self.forward_scale * forward)
        return self.from_patches(patches + self.gradient_scale * (gradient.transpose(1, 2) @ self.delta))

    def column_norms(self) -> Tensor:
        """(1, *input_shape): lengths of the matrix's columns; 0 for a value that no equation holds."""
        patches = self.weight.square().T @ self.forward_scale.square()  # (CK, L)
        patches = patches + self.gradient_scale**2 * self.delta.square().sum(0)
        return self.from_patches(patches.unsqueeze(0)).sqrt()

    def signal_below(self) -> Tensor:
        """(1, *input_shape): gradient of the loss at the layer's input, W^T delta."""
        return self.from_patches((self.weight.T @ self.delta).unsqueeze(0))

    @property
    def equations(self) -> int:
        rows = int((self.forward_scale > 0).sum())
        return rows + (self.weight.numel() if self.gradient_scale else 0)


def solve(
    system: LayerSystem, right: Tensor, *, tolerance: float, precision: float, max_iterations: int, seed: int
) -> Solved:
    """Least squares; where the equations leave a choice, the shortest solution (in units in which all
    columns of the matrix have length 1, where that is what CGLS works in).

    tolerance: CGLS stops when the normal equations' residual has shrunk by this factor.
    precision: relative rounding of the update: smaller singular values tell noise from nothing.
    """
    unknowns, columns = math.prod(system.link.input_shape), system.column_norms()
    seen = columns > 0
    columns = torch.where(seen, columns, 1.0)
    if unknowns <= DENSE_UNKNOWNS and unknowns * right.numel() <= MAX_ENTRIES:
        values, rank = _dense(system, right, precision)
    else:
        generator = torch.Generator().manual_seed(seed)
        probes = torch.randn((PROBES, *system.link.input_shape), generator=generator, dtype=torch.float64)
        probes = probes.to(right)
        images = system.times(probes / columns)
        noise = torch.randn(images.shape, generator=generator, dtype=torch.float64).to(right)
        # as noisy as the update is, so that what noise would drown counts as lost too
        images = images + precision * images.square().mean().sqrt() * noise
        both = torch.cat([right, images])
        found = _cgls(system, both, columns, tolerance=tolerance, max_iterations=max_iterations)
        values, back = found[:1] / columns, found[1:]
        # E |u - u_found|^2 / |u|^2 = 1 - rank / size for a random u and a least-length solution
        error, whole = ((probes - back) * seen).norm(), (probes * seen).norm()
        lost = float((error / whole).square()) if bool(seen.any()) else 1.0
        rank = min(int(seen.sum()) * (1 - lost), float(system.equations))
    length = float(right.norm())
    residual = float((system.times(values) - right).norm()) / length if length else 0.0
    return Solved(values, seen, unknowns, system.equations, rank, residual)


def _dense(system: LayerSystem, right: Tensor, precision: float) -> tuple[Tensor, float]:
    shape = system.link.input_shape
    unknowns = math.prod(shape)
    matrix = system.times(torch.eye(unknowns).to(right).reshape(unknowns, *shape)).T  # (equations, unknowns)
    left, singular, rightward = torch.linalg.svd(matrix, full_matrices=False)
    kept = singular > precision * singular[0]
    inverse = torch.where(kept, singular.reciprocal(), 0.0)
    values = rightward.T @ (inverse * (left.T @ right[0]))
    return values.reshape(1, *shape), float(kept.sum())


def _cgls(
    system: LayerSystem, right: Tensor, columns: Tensor, *, tolerance: float, max_iterations: int
) -> Tensor:
    """Conjugate gradients for several right-hand sides (B, equations) at once, each with its own steps.

    columns: the preconditioner; what is returned are the unknowns times it.
    """
    residual = right.clone()
    slope = system.adjoint(residual) / columns  # (B, *shape), minus the gradient of half the squared residual
    ones = (1,) * (slope.dim() - 1)
    values, direction = torch.zeros_like(slope), slope
    size = slope.flatten(1).square().sum(1)
    enough, tiny = tolerance**2 * size, torch.finfo(right.dtype).tiny
    for _ in range(max_iterations):
        image = system.times(direction / columns)
        # a column that is done takes no further steps: its quotients would be rounding by rounding
        length = torch.where(size > enough, size / image.square().sum(1).clamp_min(tiny), 0.0)
        values = values + length.reshape(-1, *ones) * direction
        residual = residual - length.unsqueeze(1) * image
        slope = system.adjoint(residual) / columns
        before, size = size, slope.flatten(1).square().sum(1)
        if bool((size <= enough).all()):
            break
        direction = slope + (size / before.clamp_min(tiny)).reshape(-1, *ones) * direction
    return values
