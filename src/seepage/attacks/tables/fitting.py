"""Whether a row's backward signal lies in the space of the signals, by the model or by its pattern alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from seepage.attacks.tables.row_space import RowSpace

Signals = Callable[[Tensor, Tensor], Tensor]
"""(k, m) what the layer reads and (k,) labels to (k, N) backward signals."""
Fit = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(k, m) what the layer reads and (k,) labels to (k, N) signals of unit length and the share of each (k,)
that lies outside the space."""
_BLOCK = 1 << 22
"""Numbers at a time. Cost: memory."""


def by_signals(space: RowSpace, signals: Signals) -> Fit:
    """The server computes what a row would have sent: one step of plain training."""

    def fit(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        sent = signals(features, labels).to(space.signals)
        unit = sent / sent.norm(dim=1, keepdim=True).clamp_min(torch.finfo(sent.dtype).tiny)
        return unit, (unit - unit @ space.signals @ space.signals.T).norm(dim=1)

    return fit


def by_pattern(
    space: RowSpace, weight: Tensor, bias: Tensor, moved: tuple[Tensor, Tensor] | None = None
) -> Fit:
    """A neuron that a ReLU keeps off sends nothing, whatever dropout or later steps do behind it.

    The signal U q that is smallest in the rows that are off is nothing there for a row of the batch (Dimitrov
    et al. 2024 guess these rows; here they follow from the layer's weight (N, m) and bias (N,)).
    moved: what several local steps add to both; a neuron must be off before and after them.
    """
    basis = space.signals
    ends = [(weight.to(basis), bias.to(basis))]
    if moved is not None:
        ends.append((ends[0][0] + moved[0].to(basis), ends[0][1] + moved[1].to(basis)))

    def some(features: Tensor) -> tuple[Tensor, Tensor]:
        off = torch.stack([features @ w.T + b <= 0 for w, b in ends]).all(0).to(basis)  # (k, N)
        moments = torch.einsum("ki,ir,is->krs", off, basis, basis)
        q = torch.linalg.eigh(moments).eigenvectors[:, :, 0]
        unit = q @ basis.T
        return unit * (1 - off), (unit * off).norm(dim=1)

    def fit(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        each = max(1, _BLOCK // (basis.shape[0] * basis.shape[1]))
        found = [some(part) for part in features.split(each)]
        if not found:
            return basis.new_zeros(0, len(basis)), basis.new_zeros(0)
        return torch.cat([unit for unit, _ in found]), torch.cat([far for _, far in found])

    return fit
