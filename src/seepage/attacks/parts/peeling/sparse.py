"""Where no neuron is alone: the sparsest vectors in the column space of the gradient.

The residual of u unknown examples has rank u: A = [G_w | G_b] = D^T X, with D (u, N) their backward signals
and X (u, m + 1) the examples. Any basis U of its column space gives D^T = U Q for some Q (u, u), and ReLU
makes each column of D^T zero wherever that example is off, while other vectors U q are zero almost nowhere.
SPEAR (Dimitrov et al. 2024) finds the q by guessing u - 1 rows in which an example is off, which takes 2^u
guesses. Here q minimises ||U q||_1 (then ||U q||_0) on the sphere by reweighted least squares from many
starts (Spielman, Wang and Wright 2012; Candes, Wakin and Boyd 2008). With all of Q known, X = Q^-1 U^T A.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

MOST_UNKNOWN = 48
"""Rank up to which the search is tried. With half of 1000 neurons active it succeeds for 48 (7 s on one core)
and fails for 64."""
_GAP = 30.0
"""Factor between the last singular value of the examples and the first one of the rounding."""
_ITERATIONS = 40
_STARTS_AT_ONCE = 64
_STARTS_EACH = 16
_ZERO = 1e-3
_SURPLUS = 0.05
"""Share of the rows in which a sparse vector is zero, beyond the u - 1 that any vector can be made to be."""
_DEPENDENT = 1e-2


@dataclass(frozen=True)
class Unmixed:
    """The u examples that a residual of rank u is made of, up to a check by the caller."""

    features: Tensor
    """(u, m)"""
    signals: Tensor
    """(u, r) at the rows given."""


Columns = Callable[[], Iterable[Tensor]]
"""The columns of a matrix (r, m), some at a time, as often as they are asked for: it is never
there as a whole."""


def unmix(columns: Columns, bias: Tensor, *, seed: int = 0, most: int = MOST_UNKNOWN) -> Unmixed | None:
    """Take rows (r, m) and (r,) of a residual apart; None where its rank or the search says no.

    >>> _ = torch.manual_seed(0)
    >>> x, d = torch.rand(3, 20), torch.randn(3, 60) * (torch.rand(3, 60) < 0.5)
    >>> found = unmix(lambda: (d.T @ x).split(8, dim=1), d.sum(0))
    >>> bool(torch.cdist(found.features, x).amin(0).max() < 1e-3)
    True
    """
    ones = bias.unsqueeze(1).double()
    basis = _column_space(columns, ones, most)
    if basis is None:
        return None
    mixing = _sparse_vectors(basis, seed)  # (u, u): q in rows
    if mixing is None:
        return None
    # D^T = U Q C with C diagonal: the bias column of X is 1, which fixes C.
    scale = torch.linalg.solve(mixing.T, basis.T @ ones)  # (u, 1)
    parts = [torch.linalg.solve(mixing.T, basis.T @ part.double()) for part in columns()]
    examples = torch.cat(parts, dim=1)  # (u, m)
    if bool((scale.abs() <= 1e-12 * examples.abs().amax(1, keepdim=True)).any()):
        return None
    signals = (mixing @ basis.T) * scale
    dtype = next(iter(columns())).dtype
    return Unmixed((examples / scale).to(dtype), signals.to(dtype))


def _column_space(columns: Columns, bias: Tensor, most: int) -> Tensor | None:
    """(r, u) orthonormal, in double precision; None where the rank is too large or not to be told."""
    gram, width = bias @ bias.T, 1
    for part in columns():
        wide = part.double()
        gram.addmm_(wide, wide.T)
        width += wide.shape[1]
    sizes = torch.linalg.eigvalsh(gram).flip(0).clamp_min(0).sqrt()
    # As many dimensions as columns, or half as many as rows, are what noise fills: nothing to be told.
    top = min((len(sizes) - 1) // 2, width - 2, most)
    if top < 1 or sizes[0] == 0:
        return None
    drop = sizes[:top] / sizes[1 : top + 1].clamp_min(1e-9 * float(sizes[0]))
    rank = int(drop.argmax()) + 1
    if float(drop[rank - 1]) < _GAP:
        return None
    vectors: Tensor = torch.linalg.eigh(gram).eigenvectors[:, -rank:]
    return vectors


def _sparse_vectors(basis: Tensor, seed: int) -> Tensor | None:
    """(u, u): the sparsest independent q, or None if there are not u of them."""
    r, u = basis.shape
    generator = torch.Generator().manual_seed(seed)
    least = u - 1 + max(3, int(_SURPLUS * r))
    known = basis.new_zeros(0, u)
    zeros = torch.zeros(0, dtype=torch.long, device=basis.device)
    for _ in range(0, _STARTS_EACH * u, _STARTS_AT_ONCE):
        picked = torch.randint(r, (_STARTS_AT_ONCE,), generator=generator).to(basis.device)
        starts = basis[picked] / basis[picked].norm(dim=1, keepdim=True).clamp_min(1e-30)
        if len(known):  # away from those found: in their orthogonal complement, every other time
            away = torch.linalg.qr(known.T).Q
            starts[::2] -= starts[::2] @ away @ away.T
        found = _reweighted(basis, starts)
        count = ((found @ basis.T).abs() <= _ZERO * basis.norm(dim=1)).sum(1)
        good = count >= least
        known, zeros = _independent(torch.cat([known, found[good]]), torch.cat([zeros, count[good]]))
        if len(known) == u:
            return known
    return None


def _reweighted(basis: Tensor, starts: Tensor) -> Tensor:
    """(t, u): local minima of the l1, then the l0 norm of U q, |q| = 1."""
    typical = len(basis) ** -0.5
    q = starts
    for step in range(_ITERATIONS):
        smoothing = max(1e-5, 0.3 * 0.7**step) * typical
        weight = ((q @ basis.T).square() + smoothing**2).reciprocal()  # (t, r)
        if step <= _ITERATIONS // 2:
            weight = weight.sqrt()
        moments = (basis.T.unsqueeze(0) * weight.unsqueeze(1)) @ basis  # (t, u, u)
        q = torch.linalg.eigh(moments).eigenvectors[:, :, 0]
    return q


def _independent(vectors: Tensor, zeros: Tensor) -> tuple[Tensor, Tensor]:
    """The sparsest first, each kept if it is no combination of those before."""
    kept: list[int] = []
    span = vectors.new_zeros(0, vectors.shape[1])
    for j in zeros.argsort(descending=True).tolist():
        rest = vectors[j] - span.T @ (span @ vectors[j])
        if float(rest.norm()) > _DEPENDENT:
            kept.append(j)
            span = torch.cat([span, (rest / rest.norm()).unsqueeze(0)])
        if len(kept) == vectors.shape[1]:
            break
    return vectors[kept], zeros[kept]
