"""Joint least squares: all found examples against all rows that they explain completely.

An example read late carries the errors of those that were taken away before it. But every row in which only
found examples fire is a linear equation in them, sum_j d_ij x_j = G_w[i], with known d; together these rows
pin all of them down as well as the gradient's own rounding allows. A row that still holds something else
would poison the result, so only rows that are explained to a few 1e-5 take part.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from seepage.attacks.reading.peeling.residual import Found, Residual
from seepage.attacks.reading.peeling.tolerances import BLOCK, SUSPECT
from seepage.models.signals import ROUNDING


def refine(residual: Residual, found: Found, norm: Tensor, rows: Tensor) -> Found:
    """`found` with the features of inexact examples corrected; `norm` (r,) is the residual at `rows` (r,).

    Solves min sum_i |R_i - sum_j d_ij delta_j|^2 / |G_i|^2 + damping for the corrections delta (Gauss-Newton
    with d held fixed), from residuals that were taken from the gradient as received.
    """
    total = (residual.norm[rows] * abs(residual.factor)).clamp_min(torch.finfo(norm.dtype).tiny)
    used = norm <= SUSPECT * total
    index = rows[used]
    # An example that no explained row holds stays where it is, and so does one that was read better than its
    # own signals are known: these equations would add their error to it.
    moving = ~found.exact & (found.signals[:, index] != 0).any(1) & (found.error >= found.doubt)
    moving = moving.nonzero().squeeze(1)
    if not len(moving):
        return found
    d = (found.signals[moving][:, index] / total[used]).double()  # (k, r), rows of equal weight
    normal = d @ d.T
    # Damped by the rounding: examples with little say stay where they are.
    normal.diagonal().add_(ROUNDING * normal.diagonal().mean())
    # In blocks of rows: (k, m) is kept, never a second copy of the gradient.
    right = torch.zeros(len(moving), residual.weight.shape[1], dtype=torch.float64, device=d.device)
    blocks = zip(index.split(BLOCK), d.split(BLOCK, dim=1), total[used].split(BLOCK), strict=True)
    for i, part, size in blocks:
        right += part @ (residual.weights(i, found) / size.unsqueeze(1)).double()
    inverse = torch.linalg.inv(normal)
    features, error = found.features.clone(), found.error.clone()
    features[moving] += (inverse @ right).to(features.dtype)
    # Rows have unit norm and the relative error of signals: that of the solution follows from the inverse.
    rounding = max(residual.signal_rounding, 2 * residual.precision.relative)
    spread = rounding * inverse.diagonal().sqrt().to(error.dtype) / features[moving].norm(dim=1)
    spread = torch.maximum(spread.nan_to_num(nan=torch.inf), found.doubt[moving])
    error[moving] = torch.minimum(error[moving], spread)
    return replace(found, features=features, error=error)
