"""Class counts are whole numbers: where the server knows the predictions, the last bias gradient must fit."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.core.errors import NotApplicable
from seepage.core.types import Exchange, Knowledge, UpdateKind
from seepage.models.layers import output_layer, trace_linear_layers
from seepage.models.probes import dummy_inputs, run_model
from seepage.protocol import training_mode

_PROBES = 64
"""Inputs of the server's own. Cost: one pass forward for all of them."""
_SAME = 1e-4
"""Predictions that differ by less over the server's own inputs do not depend on the input. Tested:
test_constants_of_adaptive_lie_on_a_plateau."""
_CERTAIN = 0.3
"""A count this far from a whole number may belong to the next one. Derived: noise of 0.1 examples exceeds it
in three of 1,000 cases; at 0.5 the next one is as near."""


@dataclass(frozen=True)
class ClassHead:
    """The last layer's bias gradient, summed over examples: sums[c] = n p_c - N_c for an unchanged update."""

    bias: str
    sums: Tensor
    """(C,) float64."""
    expected: Tensor
    """(C,) n p_c, as the model answers inputs of the server's own."""
    constant: bool
    """No input changes the answer: a fishing head, or weights that are all zero."""
    examples: int
    unit: float
    """What one summed unit is in the update's tensor."""


def read_class_head(exchange: Exchange, known: Knowledge) -> ClassHead | None:
    """None where the number of examples, the loss or the local training stand in the way."""
    update, model = exchange.update, exchange.broadcast.model
    if update.num_examples is None or known.loss != "cross_entropy":
        return None
    try:
        head = output_layer(trace_linear_layers(model, known.input), num_classes=known.input.num_classes)
    except NotApplicable:
        return None
    if head.bias is None or head.out_features < 2:
        return None
    unit = 1.0 / update.num_examples
    if update.kind is UpdateKind.DELTA:
        if known.local is None or known.local.num_steps(update.num_examples) != 1:
            return None
        unit *= -known.local.lr
    with torch.no_grad(), training_mode(model, False):
        own = dummy_inputs(known.input, _PROBES, like=model, model_units=known.normalised)
        answers = run_model(model, own).double().softmax(dim=1)  # (64, C)
    return ClassHead(
        bias=head.bias,
        sums=update.tensors[head.bias].detach().double() / unit,
        expected=update.num_examples * answers.mean(dim=0),
        constant=float(answers.std(dim=0).max()) < _SAME,
        examples=update.num_examples,
        unit=unit,
    )


def whole_class_counts(exchange: Exchange, known: Knowledge) -> dict[str, Tensor]:
    """Under a head whose answer no input changes: the bias gradient with the nearest whole counts.

    Noise and rounding move the counts that fishing reads a little off whole numbers; empty where they moved
    too far to tell, or where the counts would not add up to the number of examples.
    """
    head = read_class_head(exchange, known)
    if head is None or not head.constant:
        return {}
    counts = head.expected - head.sums
    whole = counts.round().clamp_min(0)
    if float((counts - whole).abs().max()) > _CERTAIN or int(whole.sum()) != head.examples:
        return {}
    like = exchange.update.tensors[head.bias]
    return {head.bias: ((head.expected - whole) * head.unit).to(like)}
