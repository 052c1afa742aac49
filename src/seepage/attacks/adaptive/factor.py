"""The factor by which a client scaled its update down, from the update itself.

Quotients do not need it, but labels and certificates do. Two ways: every example that is read predicts its
own bias gradient, and all must agree on the factor; or the classes' numbers of examples must be whole.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.attacks.adaptive.counts import read_class_head
from seepage.attacks.adaptive.dense import can_be_inputs
from seepage.attacks.adaptive.restore import Restored, Settings
from seepage.attacks.reading.scale import find_scale
from seepage.core.errors import NotApplicable
from seepage.core.types import Exchange, Knowledge
from seepage.models.choice import choose_layer
from seepage.models.gradients import layer_gradient
from seepage.models.signals import BackwardSignals
from seepage.protocol.losses import OF_NUMBERS

_UNTOUCHED = 1 - 1e-4
"""An update shorter than this share of the bound was not scaled. Derived: a client's float32 norm is known to
better than 1e-4."""
_MOST_ROWS = 64
"""Rows whose signals are predicted. Cost: one directional derivative each."""
_ENOUGH_VOTES = 3
"""Readings that must agree on the factor. Derived: one more than `scale.TOGETHER`, for nothing else is
checked here."""
_NOT_ENLARGED = 1.001
"""Clipping only shrinks: readings that agree on more agree by accident. Derived: `scale.SAME_SCALE` five
times over."""
_AS_WHOLE = 0.02
"""Factors whose counts are whole within this of the best are alike, and the largest of them is taken. Tested:
test_constants_of_adaptive_lie_on_a_plateau."""


def undo_clipping(exchange: Exchange, known: Knowledge, settings: Settings) -> Restored:
    """All tensors over the estimated factor."""
    update = exchange.update
    norm = torch.stack([t.detach().norm() for t in update.tensors.values()]).norm()
    bound = settings.get("norm")
    if bound is not None and float(norm) < _UNTOUCHED * float(bound):
        return {}, ("Knowing the defense: the update is shorter than the bound, so nothing was clipped.",)
    if len(exchange.clients) > 1:
        return {}, ("Knowing the defense: an aggregate has as many clipping factors as clients.",)
    factor, how = _factor(exchange, known)
    if factor is None:
        return {}, ("Knowing the defense: the clipping factor could not be estimated.",)
    scaled = {name: t / factor for name, t in update.tensors.items()}
    return scaled, (f"Knowing the defense: the clipping factor {factor:.4g} was found by {how} and undone.",)


def _factor(exchange: Exchange, known: Knowledge) -> tuple[float | None, str]:
    counted = "looking for whole numbers of examples a class"
    head = read_class_head(exchange, known)
    if head is not None and head.constant:
        return whole_counts_factor(head.sums, head.expected, head.examples), counted
    found = factor_by_readings(exchange, known)
    if found is not None:
        return found, "predicting the bias gradients of examples that were read"
    return None if head is None else whole_counts_factor(head.sums, head.expected, head.examples), counted


def factor_by_readings(exchange: Exchange, known: Knowledge) -> float | None:
    """observed = factor * (sum of signals) / n at rows that a single example activates."""
    examples, model = exchange.update.num_examples, exchange.broadcast.model
    if examples is None or known.loss.endswith("_sum") or known.loss in OF_NUMBERS:
        return None
    try:
        layer = choose_layer(model, known.input, getattr(exchange.secret, "layer", None))
    except NotApplicable:
        return None
    gradient = layer_gradient(exchange, known, layer)
    if gradient.scale is None or gradient.steps != 1:
        return None
    possible = gradient.bias.abs() * can_be_inputs(gradient.weight, gradient.bias, layer, known)
    rows = possible.topk(min(_MOST_ROWS, len(possible))).indices
    rows = rows[possible[rows] != 0]
    if len(rows) == 0:
        return None
    features = gradient.weight[rows] / gradient.bias[rows].unsqueeze(1)
    signals = BackwardSignals(model, layer, known.input, loss=known.loss)
    predicted = signals.at_one_row(features, rows)
    scale = find_scale(predicted, gradient.bias[rows] * gradient.scale, expected=None)
    if scale is None or scale.votes < _ENOUGH_VOTES:
        return None
    factor = examples / scale.kappa
    return min(1.0, factor) if factor < _NOT_ENLARGED else None


def whole_counts_factor(sums: Tensor, expected: Tensor, examples: int) -> float | None:
    """The factor in (0, 1] that makes `expected - sums / factor` whole and non-negative.

    >>> counts, expected = torch.tensor([3.0, 0.0, 1.0]), torch.tensor([1.5, 1.2, 1.3])
    >>> round(whole_counts_factor(0.25 * (expected - counts), expected, 4), 6)
    0.25
    """
    pivot = int(sums.abs().argmax())
    held = torch.arange(examples + 1, device=sums.device, dtype=sums.dtype)
    factors = sums[pivot] / (expected[pivot] - held)  # one for each number of examples in that class
    factors = factors[factors.isfinite() & (factors > 0) & (factors <= 1 + 1e-6)]
    if len(factors) == 0:
        return None
    # n grad_b[c] / factor = n p_c - N_c
    counts = expected - sums / factors.unsqueeze(1)  # (k, C)
    misses = torch.maximum((counts - counts.round()).abs(), -counts).amax(dim=1)
    return float(factors[misses <= misses.min() + _AS_WHOLE].max().clamp(max=1.0))
