"""What is left once nothing new can be read: rows in which a found example counts a little differently.

The model predicts a signal within float32, but a ReLU whose activation is 0 within rounding may fall to
either side, and so may a deeper one's. Where a row holds several examples, nobody is alone there and
`bent.absorb_observed` cannot act. But the examples are known: least squares says how much of each is left,
and whether that is everything. An example that was not found is no combination of them and cannot hide so.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.attacks.reading.peeling.residual import Found, Residual, row_norms
from seepage.attacks.reading.peeling.tolerances import BENT, BLOCK, EITHER_SIDE, SPARE, SURE
from seepage.models.signals import ROUNDING, BackwardSignals


def settle(
    residual: Residual, found: Found, rows: Tensor, weight_noise: Tensor, signals: BackwardSignals
) -> int:
    """Let found examples explain `rows` (r,), whose residuals exceed `weight_noise` (r,); how many they do.

    Changes `found.signals` at a row only where those that may be on the other side of the ReLU, or small
    changes of all exact ones that fire there, explain everything that is left.
    """
    rows, weight_noise = rows[:BLOCK], weight_noise[:BLOCK]
    if len(rows) == 0 or len(found) == 0:
        return 0
    flips = _either_side(found, rows, signals)  # (k, r)
    suspected = ((found.signals[:, rows] != 0) & found.exact.unsqueeze(1)) | flips
    most = torch.where(flips, SURE, BENT) * found.signals.abs().amax(1).double().unsqueeze(1)
    settled = 0
    for i, noise in enumerate(weight_noise.tolist()):
        left = residual.weights(rows[i : i + 1], found)  # (1, m)
        bias = residual.biases(rows[i : i + 1], found)
        for few in (flips, suspected):
            suspects = few[:, i].nonzero().squeeze(1)
            change = _explanation(left, bias, found.features[suspects], noise)
            if change is not None and bool((change.abs() <= most[suspects, i]).all()):
                found.signals[suspects, rows[i]] += change.to(found.signals)
                settled += 1
                break
    return settled


def _explanation(left: Tensor, bias: Tensor, x: Tensor, noise: float) -> Tensor | None:
    """(s,) how much of each example (s, m) a row (1, m) holds, if that and rounding is all it holds."""
    # With fewer values for each suspect they could imitate an example that was not found.
    if not 0 < SPARE * len(x) <= x.shape[1]:
        return None
    normal = _products(x, x)
    change: Tensor = torch.linalg.lstsq(normal, _products(x, left)).solution.squeeze(1)
    after = left - change.to(x) @ x
    size = float(normal.diagonal().mean().sqrt())
    explained = float(after.norm()) <= noise and float((bias - change.sum()).abs()) * size <= noise
    return change if explained else None


def _products(a: Tensor, b: Tensor) -> Tensor:
    """a b^T in double precision, without a copy of either in it."""
    total = torch.zeros(len(a), len(b), dtype=torch.float64, device=a.device)
    for x, y in zip(a.split(BLOCK, dim=1), b.split(BLOCK, dim=1), strict=True):
        total.addmm_(x.double(), y.double().T)
    return total


def _either_side(found: Found, rows: Tensor, signals: BackwardSignals) -> Tensor:
    """(k, r) bool: activations of examples that are 0 within rounding and the example's own error."""
    weight, bias = (p[rows] for p in signals.parameters)
    activation = _products(found.features, weight) + bias.double()
    terms = _products(found.features.square(), weight.square()).sqrt()
    error = torch.where(found.exact, 0.0, found.error.clamp_min(ROUNDING).double())
    reach = (error * row_norms(found.features)).unsqueeze(1) * row_norms(weight)
    either: Tensor = activation.abs() <= EITHER_SIDE * terms + SURE * reach
    return either
