"""From a guess which neurons an example leaves off to its backward signal: the sparsest U q nearby.

q minimises sum_i w_i log((U q)_i^2 + e^2 |U_i|^2 / d) on the sphere, a smooth count of the rows that are on,
by reweighted least squares (Candes, Wakin and Boyd 2008) while e falls. w_i is how probably an example leaves
the row off: one that is on for nearly all of them says nothing, and a count that took it for a zero would
lead away. Many starts at a time: each step is a product of matrices (t, d, r) x (r, d).
"""

from __future__ import annotations

import torch
from torch import Tensor

_COARSE_STEPS, _COARSE_FROM, _COARSE_TO = 24, 0.5, 0.1
"""Reweightings in the reduced space, and e there. It ends at 0.1, for the reduced
space holds the backward signals up to about as much. Twelve steps reach half as many examples from the same
starts, 48 hardly more. Tested: test_constants_of_unmixing_lie_on_a_plateau."""
_FINE_STEPS, _FINE_FROM, _FINE_TO = 8, 0.1, 1e-5
"""The same in the whole space. It ends where a zero of float32 is one. Tested:
test_constants_of_unmixing_lie_on_a_plateau."""
_TIGHTER = (1e-3, 1e-4, 1e-5)
"""Shares of a row's norm below which it counts as off, one after the other: a neuron that is on with a faint
signal spoils a q that takes it for off. No plateau test yet."""
_SMALL = 12
"""Dimensions up to which all eigenvectors are no more work than one. Cost: time alone."""


def smallest(basis: Tensor, weight: Tensor, near: Tensor | None = None) -> Tensor:
    """(t, d) unit q that minimise sum_i w_i (basis_i q)^2, for weights (t, r) of the rows of `basis` (r, d).

    near: (t, d) guesses, from which a few inverse iterations do.
    """
    moments = (basis.T.unsqueeze(0) * weight.unsqueeze(1)) @ basis  # (t, d, d)
    if near is not None and basis.shape[1] > _SMALL:
        factor, failed = torch.linalg.cholesky_ex(moments)
        if not bool(failed.any()):
            q = near.unsqueeze(2)
            for _ in range(3):
                q = torch.cholesky_solve(q, factor)
                q = q / q.norm(dim=1, keepdim=True)
            if bool(q.isfinite().all()):  # moments that are singular but for rounding have a factor as well
                return q.squeeze(2)
    vectors: Tensor = torch.linalg.eigh(moments).eigenvectors[:, :, 0]
    return vectors


def from_patterns(basis: Tensor, on: Tensor) -> Tensor:
    """(t, d): U q as small as possible in the rows that patterns (t, r) leave off."""
    return smallest(basis, (~on).to(basis) + 1e-3)


def coarse(basis: Tensor, q: Tensor, off: Tensor) -> Tensor:
    """Sparse vectors of the reduced space near q (t, d), up to what the reduction leaves out.

    off: (r,) or (t, r) how probably an example leaves each row off.
    """
    typical = _sizes(basis)
    falls = (_COARSE_TO / _COARSE_FROM) ** (1 / (_COARSE_STEPS - 1))
    for step in range(_COARSE_STEPS):
        smoothing = _COARSE_FROM * falls**step * typical
        q = smallest(basis, off / ((q @ basis.T).square() + smoothing**2), q)
    return q


def fine(basis: Tensor, q: Tensor, floor: Tensor, off: Tensor) -> Tensor:
    """Sparse vectors of the whole space near q (t, u), with zeros down to the noise.

    floor: (t, r) what noise alone leaves of a zero, for |q| = 1; off: as `coarse` has it.
    """
    typical = _sizes(basis)
    falls = (_FINE_TO / _FINE_FROM) ** (1 / (_FINE_STEPS - 1))
    for step in range(_FINE_STEPS):
        smoothing = _FINE_FROM * falls**step * typical
        weight = off / ((q @ basis.T).square() + smoothing**2 + floor.square())
        q = smallest(basis, weight, q if step else None)
    return tightened(basis, q, floor)


def _sizes(basis: Tensor) -> Tensor:
    """(r,) root mean square of U_i q over unit q; at least what a reduced space gets wrong in a usual row."""
    sizes = basis.square().mean(1).sqrt()
    return sizes.clamp_min(_COARSE_TO * float(sizes.square().mean().sqrt()))


def tightened(basis: Tensor, q: Tensor, floor: Tensor) -> Tensor:
    """q (t, u) that already has the zeros it should have, with no other row taken for one."""
    for share in _TIGHTER:
        off = ~fires(basis, q, floor, share)
        enough = off.sum(1, keepdim=True) >= basis.shape[1]
        q = torch.where(enough, smallest(basis, off.to(basis)), q)
    return q


def fires(basis: Tensor, q: Tensor, floor: Tensor, share: float = _TIGHTER[-1]) -> Tensor:
    """(t, r) bool: rows in which U q is no zero."""
    on: Tensor = (q @ basis.T).abs() > torch.maximum(share * basis.norm(dim=1), floor)
    return on


def distinct(q: Tensor, known: Tensor, *, alike: float) -> Tensor:
    """Indices of unit vectors (t, u) that are neither near one of `known` (k, u) nor near an earlier one."""
    same = (q @ torch.cat([known, q]).T).abs() > alike
    earlier = torch.ones_like(same).tril(len(known) - 1)
    return (~(same & earlier).any(1)).nonzero().squeeze(1)


def unit(q: Tensor) -> Tensor:
    """Rows of length 1."""
    scaled: Tensor = q / q.norm(dim=1, keepdim=True).clamp_min(torch.finfo(q.dtype).tiny)
    return scaled
