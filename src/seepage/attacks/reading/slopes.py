"""Backward signals where targets are numbers: any combination of the outputs' slopes may have been sent.

An example x that the model was to say y about sends d = J(x)^T r, where J (outputs, N) has the slopes of the
outputs by the layer's, which the server computes, and r is what the loss makes of y, which it cannot try out
as it tries classes. But d lies in the column space of the layer's gradient, and the slopes of a mixture have
no combination that does. So r is, but for its size, the one that lies there best.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.models.signals import BackwardSignals

MOST_OUTPUTS = 64
"""Cost: a pass there and back for each of them."""


def slopes(signals: BackwardSignals, features: Tensor) -> Tensor:
    """(k, outputs, N) of candidates (k, m)."""
    units = torch.eye(signals.spec.num_targets, dtype=features.dtype, device=features.device)
    each = [signals.at_all_rows(features, unit.expand(len(features), -1)) for unit in units]
    return torch.stack(each, dim=1)


def inside(of: Tensor, basis: Tensor) -> Tensor:
    """(k, outputs) weights of the combination of slopes (k, outputs, r) that lies in a span (r, u) best.

    >>> of, basis = torch.tensor([[[1.0, 1.0, 0.0], [0.0, 2.0, 1.0]]]), torch.eye(3)[:, :2]
    >>> weights = inside(of, basis)[0]
    >>> abs(float(weights[1] / weights[0])) < 1e-6  # the first slope lies in it by itself
    True
    """
    size = of.double().norm(dim=2, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    seen = of.double() / size
    beside = seen - (seen @ basis.double()) @ basis.double().T
    least: Tensor = torch.linalg.eigh(beside @ beside.mT).eigenvectors[:, :, 0] / size.squeeze(2)
    return least
