"""What rows of a gradient hold beside the examples that are known, in a few coordinates.

With E = [X, 1] of the known examples, each row A_i = [G_w, G_b]_i is L_i E + R_i, where R_i is what no
combination of them explains. u unknown examples span the R_i, so each row is u numbers: where two rows hold
the same single unknown example, these are proportional.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.reading.peeling.residual import Found, Residual
from seepage.attacks.reading.peeling.tolerances import BEYOND, BLOCK, COARSE, MOST_ROWS, SPARE, SURE


@dataclass(frozen=True)
class Split:
    """Some rows (r, m + 1) of a gradient, split by k known examples; all in double precision."""

    rows: Tensor
    """(r,) numbers of the rows."""
    known: Tensor
    """(r, k) L: what each holds of the known examples, if it holds nothing else."""
    spread: Tensor
    """(k,) by what factor noise of one value becomes noise of L: the root of the diagonal of (E E^T)^-1."""
    size: Tensor
    """(r,) norm of R."""
    noise: Tensor
    """(r,) root mean square of the rounding in one value of a row."""
    columns: int

    @property
    def explained(self) -> Tensor:
        """(r,) bool: nothing but known examples and rounding."""
        explained: Tensor = self.size <= BEYOND * self.noise * self.columns**0.5
        return explained

    @property
    def open(self) -> Tensor:
        """(o,) positions of rows that hold something else."""
        return (~self.explained).nonzero().squeeze(1)


def split(residual: Residual, rows: Tensor, examples: Tensor) -> Split:
    """Rows (r,) of the gradient as it was received, split by known examples (k, m)."""
    e = _extended(residual, examples)
    # Of those that are nearly alike, some may be combinations of others: the shortest solution, then.
    gram = torch.linalg.pinv(e @ e.T, hermitian=True) if len(e) else e.new_zeros(0, 0)
    noise = residual.noise(rows, Found.none(residual.weight))[1] / residual.weight.shape[1] ** 0.5
    known, size = [], []
    for some in rows.split(BLOCK):
        a = gradient_rows(residual, some)
        known.append(a @ e.T @ gram)
        size.append((a - known[-1] @ e).norm(dim=1))
    return Split(
        rows=rows,
        known=torch.cat(known),
        spread=gram.diagonal().clamp_min(0).sqrt(),
        size=torch.cat(size),
        noise=noise.double(),
        columns=e.shape[1],
    )


def gradient_rows(residual: Residual, rows: Tensor) -> Tensor:
    """(r, m + 1) [G_w | G_b] in double precision."""
    wide = torch.cat([residual.weight[rows], residual.bias[rows].unsqueeze(1)], dim=1)
    return wide.double().mul_(residual.factor)


def refined(residual: Residual, parts: Split, examples: Tensor) -> tuple[Tensor, Tensor] | None:
    """(k, m) examples as all explained rows together have them, and (k,) the noise of a value.

    Least squares for X in L E = A, with L as it was found: mixtures of examples that are nearly alike leave
    more than rounding in some rows, and are moved off their grid. None where those rows do not hold all.
    """
    at = parts.explained.nonzero().squeeze(1)
    share = parts.known[at] / parts.noise[at].unsqueeze(1)  # (r, k), rows of equal noise
    if len(at) < SPARE + share.shape[1]:
        return None
    normal = share.T @ share
    if int(torch.linalg.matrix_rank(normal, hermitian=True)) < len(normal):
        return None
    inverse, e = torch.linalg.inv(normal), _extended(residual, examples)
    correction = torch.zeros_like(e)
    for some, by in zip(at.split(BLOCK), share.split(BLOCK), strict=True):
        left = gradient_rows(residual, parts.rows[some]) - parts.known[some] @ e
        correction += by.T @ (left / parts.noise[some].unsqueeze(1))
    better = e + inverse @ correction
    noise = inverse.diagonal().clamp_min(0).sqrt()
    return (better[:, :-1] / better[:, -1:]).to(examples.dtype), noise


@dataclass(frozen=True)
class Unknown:
    """The open rows in the coordinates of what is unknown."""

    at: Tensor
    """(o,) positions in the split."""
    coordinates: Tensor
    """(o, u) of each open row's R."""
    basis: Tensor
    """(u, m + 1) orthonormal."""


def unknown_part(residual: Residual, parts: Split, examples: Tensor) -> Unknown | None:
    """None where nothing is open, or more than can be told apart."""
    at = parts.open
    # The strongest, where there are many: each says the same about what it holds.
    if len(at) > MOST_ROWS:
        strongest = (parts.size[at] / parts.noise[at]).topk(MOST_ROWS).indices
        at = at[strongest]
    if len(at) < 2:
        return None
    e = _extended(residual, examples)
    left = torch.cat(
        [gradient_rows(residual, parts.rows[some]) - parts.known[some] @ e for some in at.split(BLOCK)]
    )
    weight = 1 / parts.noise[at]  # rows of equal noise
    values, vectors = torch.linalg.eigh((left * weight[:, None]) @ (left * weight[:, None]).T)
    noise = SURE * (len(at) ** 0.5 + parts.columns**0.5)
    kept = values.clamp_min(0).sqrt() > noise
    rank = int(kept.sum())
    if rank == 0 or rank + SPARE > min(len(at), parts.columns):
        return None
    basis = vectors[:, kept].T @ (left * weight[:, None])
    basis = basis / basis.norm(dim=1, keepdim=True)
    return Unknown(at=at, coordinates=left @ basis.T, basis=basis)


def rank(residual: Residual, parts: Split, examples: Tensor) -> int | None:
    """Independent examples that the rows show, known ones (k, m) and others; None: more than can be told.

    What is a hundredth of the strongest is not counted: it may be the difference of two that are nearly
    alike.
    """
    strength = parts.known.norm(dim=0) / parts.spread  # of what each adds to the others' span
    if len(parts.open):
        unknown = unknown_part(residual, parts, examples)
        if unknown is None:
            return None
        strength = torch.cat([strength, torch.linalg.svdvals(unknown.coordinates)])
    return int((strength > COARSE * strength.max()).sum())


def _extended(residual: Residual, examples: Tensor) -> Tensor:
    """(k, m + 1): [X, 1], or [X, 0] for a layer without a bias, which G_b = 0 stands for."""
    last = float(bool(residual.bias.any()))
    return torch.cat([examples.double(), examples.new_full((len(examples), 1), last, dtype=torch.float64)], 1)
