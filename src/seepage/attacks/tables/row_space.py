"""The span of the rows that a layer read, and of their backward signals, from the layer's gradient.

G = D^T [X, 1]: rows of X lie in its row space, the signals D in its column space, whatever the activation.
After several local steps, with dropout or behind a batch norm it is still a sum over the same rows X.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.models.gradients import LayerGradient

LEAST_GAP = 5.0
"""Derived: neighbouring singular values of pure rounding differ by less than a factor of 2; of rows against
it by 100 and more."""
_SILENT = 1e-5
"""Of the weights' gradient: what rounding leaves of a bias before a batch norm in train mode, which has no
gradient at all. Derived: float32 leaves 1e-7, times the root of a batch of thousands."""


@dataclass(frozen=True)
class RowSpace:
    """The space of one layer's gradient, in float64."""

    gradient: Tensor
    """(N, m) or (N, m + 1), with the bias as the last column."""
    rows: Tensor
    """(m or m + 1, r) orthonormal: what the layer read."""
    signals: Tensor
    """(N, r) orthonormal: backward signals."""
    noise: float
    """How far rounding turns the spaces: the first singular value of noise over the last one of rows, which
    bounds the sine of the angle (Wedin 1972)."""
    biased: bool

    @property
    def rank(self) -> int:
        return self.rows.shape[1]

    def without(self, signals: Tensor, *, off: float) -> RowSpace:
        """The space of the rows that are left when those with these signals (k, N) are taken away.

        off: by how much the signals may be turned.
        v^T G for v orthogonal to their signals holds nothing of them:
        sum over the others of (v^T d_i) x_i.
        """
        own = torch.linalg.qr(signals.to(self.gradient).T).Q  # (N, k)
        inside = self.signals - own @ (own.T @ self.signals)
        basis, _, _ = torch.linalg.svd(inside, full_matrices=False)
        left = self.signals.shape[1] - len(signals)
        others = basis[:, : max(0, left)]
        _, _, right = torch.linalg.svd(others.T @ self.gradient, full_matrices=False)
        return replace(self, rows=right[: max(0, left)].T.contiguous(), noise=max(self.noise, off))

    def extended(self, features: Tensor) -> Tensor:
        """(k, m) what the layer reads, with the 1 that its bias reads."""
        return torch.cat([features, features.new_ones(len(features), 1)], dim=1) if self.biased else features


def row_space(gradient: LayerGradient, *, most: int | None) -> RowSpace | None:
    """The spaces, their rank at the widest gap of the spectrum; None without a gap.

    most: how many examples there are.

    >>> x, d = torch.rand(3, 6), torch.rand(3, 8)
    >>> found = row_space(LayerGradient(d.T @ x, d.sum(0), scale=1.0, steps=1), most=None)
    >>> found.rank, found.biased
    (3, True)
    """
    weight, bias = gradient.weight.double(), gradient.bias.double()
    biased = float(bias.norm()) > _SILENT * float(weight.norm())
    joint = torch.cat([weight, bias.unsqueeze(1)], dim=1) if biased else weight
    left, values, right = torch.linalg.svd(joint, full_matrices=False)
    if not float(values[0]) > 0:
        return None
    floor = gradient.precision.relative * float(values[0])
    present = int((values > floor).sum())
    ratios = values[: min(present, len(values) - 1)] / values[1 : present + 1].clamp_min(1e-3 * floor)
    ratios = ratios[:most]
    if len(ratios) == 0 or float(ratios.max()) < LEAST_GAP:
        return None
    rank = int(ratios.argmax()) + 1
    noise = max(1 / float(ratios.max()), floor / float(values[rank - 1]))
    return RowSpace(joint, right[:rank].T.contiguous(), left[:, :rank].contiguous(), noise, biased)
