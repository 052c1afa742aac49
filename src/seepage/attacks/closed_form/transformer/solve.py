"""APRIL's two systems of linear equations, solved at once and with an estimate of the error.

G^T z = sum of W^T dW over query, key and value (Lu et al. 2021), and z = P E^T + constant, where G is the
gradient at the tokens, P the patches and E the patch embedding. In the bases of both singular value
decompositions, G = U S V^T and E = A T B^T, every unknown has an equation of its own: S_i T_j p_ij = r_ij.

At initialisation softmax is nearly flat, the rows of G are nearly alike, and some S_i are so small that the
rounding of a float32 update exceeds them. Plain least squares (dgelss in Wen et al. 2022, Appendix B) returns
noise there. The equations are redundant, so what no P can explain shows how large the noise is, and each
unknown is shrunk to the prior's middle by as much as its noise demands (Tikhonov); not for exact data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The solution in units of the prior's standard deviation, and how far it can be trusted."""

    values: Tensor
    """(N, D)."""
    deviation: Tensor
    """(N, D): standard deviation of the error; 1 where the equations say nothing."""
    residual: float
    """What no solution explains, relative to the right side; 0 without redundancy, which tells nothing."""
    redundant: bool
    """There are more equations than unknowns, so that the residual tells something."""
    token_condition: float
    """Largest over smallest singular value of G; infinite when some tokens' patches cannot be told apart."""
    embedding_condition: float
    """The same of E; infinite when it loses information."""


def solve_bilinear(left: Tensor, kernel: Tensor, right: Tensor, *, rounding: float) -> Estimate:
    """P (N, D), a priori N(0, 1), with left^T P kernel^T = right; left (N, d), kernel (e, D), right (d, e).

    rounding: relative error of the entries of `right`, for where there is no redundancy to measure it by.

    >>> left, kernel, truth = (torch.randn(size).double() for size in ((3, 5), (5, 4), (3, 4)))
    >>> found = solve_bilinear(left, kernel, left.T @ truth @ kernel.T, rounding=1e-16)
    >>> torch.allclose(found.values, truth), found.redundant
    (True, True)
    """
    u, s, vh = torch.linalg.svd(left)  # (N, N), (min(N, d),), (d, d)
    a, t, bh = torch.linalg.svd(kernel)  # (e, e), (min(e, D),), (D, D)
    inside = vh[: len(s)] @ right @ a[:, : len(t)]  # r_ij
    redundancy = right.numel() - inside.numel()
    # summed from the part that is left, for a difference of two squares would drown it in rounding
    beyond = right - vh[: len(s)].T @ inside @ a[:, : len(t)].T
    size = float(right.norm())
    noise = float(beyond.norm()) / math.sqrt(redundancy) if redundancy else 0.0
    noise = max(noise, rounding * size / math.sqrt(right.numel()), torch.finfo(right.dtype).tiny ** 0.25)

    strength = torch.zeros(len(left), kernel.shape[1], dtype=right.dtype)
    strength[: len(s), : len(t)] = torch.outer(s, t)
    padded = torch.zeros_like(strength)
    padded[: len(s), : len(t)] = inside
    total = strength.square() + noise**2
    variance = noise**2 / total  # posterior variance: the prior's, 1, where strength is 0
    return Estimate(
        values=u @ (strength * padded / total) @ bh,
        deviation=(u.square() @ variance @ bh.square()).clamp_min(0).sqrt(),
        residual=float(beyond.norm()) / size if size and redundancy else 0.0,
        redundant=redundancy > 0,
        token_condition=_condition(s, len(left)),
        embedding_condition=_condition(t, kernel.shape[1]),
    )


def _condition(singular: Tensor, unknowns: int) -> float:
    if len(singular) < unknowns or float(singular[-1]) == 0:
        return math.inf
    return float(singular[0] / singular[-1])
