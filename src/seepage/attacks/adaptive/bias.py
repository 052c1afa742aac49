"""A hidden bias gradient, put back: rows are multiples of inputs, and the value range says by what."""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.attacks.adaptive.restore import Restored, Settings
from seepage.core.types import Exchange, InputSpec, Knowledge, Modality
from seepage.models.hooks import watching
from seepage.models.layers import LinearLayer, trace_linear_layers
from seepage.models.probes import dummy_inputs, run_model
from seepage.models.signals import BackwardSignals
from seepage.protocol import training_mode
from seepage.protocol.losses import OF_NUMBERS

_NOTHING = 1e-5
"""Share of a row's largest entry below which an entry is rounding. Derived: about a hundred last digits of
float32."""
_PROBES = 64
"""Inputs of the server's own. Cost: one pass forward for all of them."""


def bias_from_range(exchange: Exchange, known: Knowledge, settings: Settings) -> Restored:
    """The bias gradient with which each row, divided by it, just fills the value range.

    A picture nearly always has a pixel at an end of the range. A layer that reads inner features has no
    range; there the mean feature of the server's own inputs is the yardstick, which gives the bias roughly.
    """
    model = exchange.broadcast.model
    layers = [layer for layer in trace_linear_layers(model, known.input) if layer.bias is not None]
    wanted = settings.get("layer")
    layer = next((one for one in layers if wanted in (None, one.name)), None)
    if layer is None or layer.bias is None:
        return {}, ("Knowing the defense: there is no hidden bias to put back.",)
    weight = exchange.update.tensors[layer.weight].detach()
    spec = known.input
    in_range = spec.value_range is not None and not known.normalised and spec.modality is not Modality.TEXT
    if layer.reads == "input" and in_range:
        bias = _filling_bias(weight, layer, exchange, known)
        how = "from the value range, which each row was scaled to fill"
    else:
        bias = _bias_by_mean_feature(weight, layer, exchange, known)
        how = "from the mean feature of the server's own inputs"
    return {layer.bias: bias.to(weight)}, (
        f"Knowing the defense: the hidden bias gradient of layer '{layer.name}' was estimated {how}.",
    )


def _filling_bias(weight: Tensor, layer: LinearLayer, exchange: Exchange, known: Knowledge) -> Tensor:
    up, down = reach(weight, known.input), reach(-weight, known.input)  # 1 / |bias| for either sign
    positive, negative = _inverse(up), -_inverse(down)
    both = (up > 0) & (down > 0)
    bias = torch.where(up > 0, positive, negative)
    if bool(both.any()) and known.loss not in OF_NUMBERS:
        rows = both.nonzero().squeeze(1)
        better = _mismatch(weight, negative, rows, layer, exchange, known) < _mismatch(
            weight, positive, rows, layer, exchange, known
        )
        bias[rows] = torch.where(better, negative[rows], positive[rows])
    return bias


def reach(weight: Tensor, spec: InputSpec) -> Tensor:
    """(N,) the largest t for which t times the row is an input inside the value range; 0: none is.

    >>> spec = InputSpec(modality=Modality.TABULAR, shape=(2,), num_classes=2)
    >>> reach(torch.tensor([[0.5, 0.25], [0.5, -0.25]]), spec).tolist()
    [2.0, 0.0]
    """
    assert spec.value_range is not None
    ends = [
        spec.to_model(torch.full(spec.shape, end, dtype=weight.dtype, device=weight.device)).flatten()
        for end in spec.value_range
    ]
    large = weight.abs() > _NOTHING * weight.abs().amax(dim=1, keepdim=True)
    limits = torch.where(weight > 0, ends[1], ends[0]) / weight  # (N, m): t at which the entry leaves
    free = torch.full_like(limits, torch.inf)
    largest = torch.where(large, limits, free).amin(dim=1).clamp_min(0)
    return torch.where(large.any(dim=1) & (largest > 0), largest, torch.zeros_like(largest))


def _inverse(t: Tensor) -> Tensor:
    return torch.where(t > 0, 1 / t.clamp_min(torch.finfo(t.dtype).tiny), torch.zeros_like(t))


def _mismatch(
    weight: Tensor, bias: Tensor, rows: Tensor, layer: LinearLayer, exchange: Exchange, known: Knowledge
) -> Tensor:
    """How far a bias gradient is from what an input read with it would cause, for the label that fits best.

    Normalised values have either sign, so both signs of a row fit the range; only one fits the model.
    """
    signals = BackwardSignals(exchange.broadcast.model, layer, known.input, loss=known.loss)
    predicted = signals.at_one_row(weight[rows] / bias[rows].unsqueeze(1), rows)  # (k, labels)
    examples = 1 if known.loss.endswith("_sum") else exchange.update.num_examples or 1
    observed = examples * bias[rows].unsqueeze(1)
    return ((predicted - observed) / observed).abs().amin(dim=1)


def _bias_by_mean_feature(weight: Tensor, layer: LinearLayer, exchange: Exchange, known: Knowledge) -> Tensor:
    """G_w = sum_j d_j f_j^T is about (sum_j d_j) f^T where all features f_j are alike."""
    model = exchange.broadcast.model
    with torch.no_grad(), training_mode(model, False), watching(model, layer.name) as seen:
        run_model(model, dummy_inputs(known.input, _PROBES, like=model, model_units=known.normalised))
    mean = seen[0].flatten(0, -2).mean(dim=0).to(weight)  # (m,)
    return weight @ mean / mean.square().sum().clamp_min(torch.finfo(weight.dtype).tiny)
