"""Whether a backward signal can be in the gradient at all: the span check.

The gradient of n examples is A = [G_w | G_b] = D^T [X | 1], so its column space is spanned by the examples'
own backward signals, as long as the layer reads more values than there are examples. The signal d(x, y) of a
true example lies in that space at *every* neuron; that of a mixture, which the model bends at each ReLU, does
not. This needs no batch size, no alphabet and no value range (SPEAR, Dimitrov et al. 2024).
"""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.attacks.reading.peeling.residual import Found, Residual
from seepage.attacks.reading.peeling.tolerances import BLOCK, COARSE, FEW, MOST_ROWS, SPARE, SURE


class SignalSpan:
    """The column space of a gradient, from as many rows as are needed.

    >>> from seepage.models.gradients import LayerGradient
    >>> _ = torch.manual_seed(0)
    >>> x, d = torch.rand(3, 20), torch.randn(3, 60) * (torch.rand(3, 60) < 0.5)
    >>> gradient = LayerGradient(d.T @ x, d.sum(0), scale=1.0, steps=1)
    >>> span = SignalSpan(Residual(gradient), torch.arange(60))
    >>> span.rank, span.refutes(torch.cat([d, d[:1] * (d[1:2] != 0)]), x[[0, 1, 2, 0]]).tolist()
    (3, [False, False, False, True])
    """

    def __init__(self, residual: Residual, active: Tensor) -> None:
        step = -(-len(active) // MOST_ROWS) if len(active) else 1
        self.index = active[::step]
        rows, columns = len(self.index), residual.weight.shape[1]
        gram, used = _gram(residual, self.index)
        values, vectors = torch.linalg.eigh(gram)
        sizes = values.clamp_min(0).sqrt()
        noise = residual.noise(self.index, Found.none(residual.weight))[1]
        typical = noise.square().mean().div(columns).sqrt()
        self.noise = float(SURE * typical * (rows**0.5 + columns**0.5))
        kept = sizes > self.noise
        self.rank = int(kept.sum())
        """Examples that the gradient shows, or 0 where it holds too many to tell."""
        # A rank as large as the columns may be theirs: then the examples are more than are seen.
        if self.rank >= min((1 - FEW / 2) * used, rows - SPARE):
            self.rank = 0
        self.basis = vectors[:, kept] if self.rank else None
        self._sizes, self._residual = sizes[kept], residual
        self.columns = columns

    def outside(self, columns: Tensor) -> Tensor:
        """(c,) how much of a step in each of these columns lies beside what the examples span."""
        assert self.basis is not None
        rows = self._residual.weight[self.index][:, columns].double() * self._residual.factor  # (r, c)
        inside = (rows.T @ self.basis / self._sizes).square().sum(1)
        beside: Tensor = (1 - inside).clamp_min(0).sqrt()
        return beside

    def refutes(self, signals: Tensor, features: Tensor) -> Tensor:
        """(k,) bool: signals (k, N) of candidates (k, m) that are not in the gradient; False: may be."""
        if self.basis is None:
            return torch.zeros(len(signals), dtype=torch.bool, device=signals.device)
        d = signals[:, self.index].double()
        size = d.norm(dim=1)
        outside = (d - (d @ self.basis) @ self.basis.T).norm(dim=1)
        # Below this the rounding alone turns the direction of a contribution by more than `COARSE`.
        faint = size * features.double().norm(dim=1) <= self.noise / COARSE
        refuted: Tensor = (outside > COARSE * size) & ~faint
        return refuted


def _gram(residual: Residual, index: Tensor) -> tuple[Tensor, int]:
    """Products of the rows `index` of [G_w | G_b] in double precision, and the number of columns in use.

    Pixels that are black in every example, as at MNIST's border, say nothing. A few columns at a time: no
    copy of the gradient.
    """
    bias = (residual.bias[index].double() * residual.factor).unsqueeze(1)
    gram, used = bias @ bias.T, 1
    for columns in residual.weight.split(BLOCK, dim=1):
        wide = columns[index].double().mul_(residual.factor)
        gram.addmm_(wide, wide.T)
        used += int((wide != 0).any(0).sum())
    return gram, used
