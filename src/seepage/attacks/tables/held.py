"""Rows that are known already, for a search that looks for the others: which label each of them has.

A row that stands alone at a neuron i is read from its gradient there, d_i(x, y) [x, 1]: the sign and size of
d_i, which the server can compute for every label, say which one it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.tables.sight import Sight
from seepage.core.types import Knowledge, Reconstruction
from seepage.models.hooks import layer_input

_ALONE = 1e-6
"""1 - |cos| of a neuron's gradient and what the row feeds it. Derived: float32 leaves 1e-7, another row with
a thousandth of the gradient 1e-6."""
_LABELLED = 1e-2
"""Share by which what was sent may differ from what this label sends. Derived: a wrong label's differs by
1 / p for softmax outputs p, at least by its own size."""


@dataclass(frozen=True)
class Held:
    """Rows of the batch that need not be searched for."""

    rows: Tensor
    """(k, D) in model units."""
    labels: Tensor


def held_rows(read: Reconstruction, sight: Sight, known: Knowledge) -> Held | None:
    """The claimed rows whose label is seen; None where there are none."""
    if sight.signals is None or read.claimed is None or not bool(read.claimed.any()) or read.model_units:
        return None
    layer, gradient = sight.front.layer, sight.gradient
    rows = known.input.to_model(read.values[read.claimed.to(read.values.device)].double())
    features = layer_input(sight.model, layer.name, rows).double()  # (k, m)
    fed = torch.cat([features, features.new_ones(len(features), 1)], dim=1)
    joint = torch.cat([gradient.weight, gradient.bias.unsqueeze(1)], dim=1).to(fed)  # (N, m + 1)
    inner = joint @ fed.T  # (N, k)
    tiny = torch.finfo(fed.dtype).tiny
    cosine = inner.abs() / (joint.norm(dim=1)[:, None] * fed.norm(dim=1)).clamp_min(tiny)
    alone = (1 - cosine <= _ALONE) & (inner != 0)
    seen = inner / fed.square().sum(1) * sight.factor  # (N, k): the sum of d_i over examples
    classes = max(2, known.input.num_classes)
    labels = torch.arange(classes, device=fed.device)
    sent = torch.stack([sight.signals(features, y.expand(len(fed))).to(fed).T for y in labels])  # (C, N, k)
    apart = torch.where(alone, (sent - seen).abs(), 0.0).sum(1)  # (C, k)
    size = torch.where(alone, seen.abs(), 0.0).sum(0).clamp_min(tiny)
    share, label = (apart / size).min(0)
    sure = alone.any(0) & (share <= _LABELLED)
    return Held(rows[sure], label[sure]) if bool(sure.any()) else None
