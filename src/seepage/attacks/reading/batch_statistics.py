"""Whole batches through batch norm in train mode, by the statistics that are sent.

Behind a layer, batch norm takes away what all examples share: their backward signals sum to 0, the bias
gradient is 0, and the rows of G = sum_b d_b x_b^T span the differences x_b - m only, m the batch's mean. But
with the batch's statistics (`models.sent_statistics`) what the next layer reads of m + V a is a function of a
that the server knows, and that layer's gradient spans what it reads of the examples
(`unmixing.next_equations`), or their differences where batch norm stands behind it as well. There are as many
roots as examples, they sum to 0, and m follows from the mean of W m + b that was sent, if the layer has as
many neurons as it reads values.

Signals in train mode depend on the whole batch, so examples are not certified one by one: the whole update is
computed again from all of them. All rests on the number that was declared, for what was sent is n / (n - 1)
times the batch's variance: pairs that are nearly alike, each counted once, look like their means a little
nearer to each other.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from seepage.attacks.reading.batch_roots import Layer, norm_behind, roots_of, rows_of, solved
from seepage.attacks.reading.peeling.codes import choose_code
from seepage.attacks.reading.peeling.tolerances import BEYOND, FINE, SURE
from seepage.core.types import (
    INPUT_SPACE,
    Batch,
    Exchange,
    Knowledge,
    Reconstruction,
    RowCount,
    UpdateKind,
)
from seepage.models.between import next_linear
from seepage.models.gradients import LayerGradient, layer_gradient
from seepage.models.hooks import layer_input
from seepage.models.layers import LinearLayer, trace_linear_layers
from seepage.models.precision import EXACT
from seepage.models.sent_statistics import STATISTICS, with_sent_statistics
from seepage.protocol import local_update


def read_by_statistics(exchange: Exchange, known: Knowledge, layer: LinearLayer) -> Reconstruction | None:
    """The batch behind an update in train mode; None where it is not one that this can read."""
    model, count = with_sent_statistics(exchange, known.local), exchange.update.num_examples
    if model is None or count is None or layer.reads != "input":
        return None
    gradient = layer_gradient(exchange, known, layer)
    rows, norm = rows_of(gradient), norm_behind(model, layer)
    between = next_linear(model, layer, known.input)
    if rows is None or norm is None or len(rows.sizes) != count - 1 or between is None:
        return None
    weight = model.get_parameter(layer.weight).detach().double()
    shared, spread = norm
    basis = rows.basis[:-1]  # the bias gradient is 0
    here = Layer(basis, torch.cat([weight @ basis, shared.unsqueeze(1)], dim=1), spread, between)
    roots = roots_of(here, model, layer, exchange, known)
    if roots is None:
        return None
    a = roots.a[:, :-1]
    # In each value: of the place in the span, of the span, and of the mean, whose outputs are rounded too.
    equations = max(1, len(weight) - 2 * count)
    place = roots.spread * roots.residual / (equations * len(basis)) ** 0.5
    own = BEYOND * torch.hypot(place, rows.noise * (a / rows.sizes).norm(dim=1)).max()
    rounded = STATISTICS * (shared.abs() + spread).square().mean().sqrt()
    error = float(own + rounded * _solving(weight))
    features = (solved(model, layer, shared) + a @ basis.T).to(gradient.weight)
    return _reconstruction(model, layer, features, error, gradient, exchange, known)


def _reconstruction(
    model: nn.Module,
    layer: LinearLayer,
    features: Tensor,
    error: float,
    gradient: LayerGradient,
    exchange: Exchange,
    known: Knowledge,
) -> Reconstruction:
    """Claimed as a whole, if the update that these examples (n, m) make is the one that was received.

    error: root mean square of that of a value.
    """
    code = choose_code(exchange.broadcast.model, layer, known.input, decode=None, seed=0)
    snapped, bounds = code.snap(features), code.bounds()
    unit = float(features.abs().max() if bounds is None else (bounds[1] - bounds[0]).min())
    inputs, count = snapped.features.reshape(-1, *known.input.shape), len(features)
    labels = _labels(model, inputs, exchange, known)
    off = torch.inf if labels is None else _replayed(exchange, known, Batch(inputs, labels))
    determined = SURE * error <= EXACT * unit
    # Off a grid, the rank of a difference of weights does not rule near copies out (`one_each`).
    told = exchange.update.kind is UpdateKind.GRADIENT or bool(snapped.exact.all())
    claimed = torch.full((count,), determined and told and off <= FINE)
    return Reconstruction(
        values=known.input.to_raw(inputs),
        space=INPUT_SPACE,
        model_units=known.normalised,
        claimed=claimed,
        confidence=claimed.double(),
        support=torch.full((count,), len(gradient.bias)),
        rows=RowCount(total=len(gradient.bias), active=int((gradient.weight != 0).any(1).sum())),
        label_counts=None
        if labels is None
        else torch.bincount(labels, minlength=known.input.num_classes).cpu(),
        complete=bool(claimed.all()),
        if_declared=bool(claimed.any()),
        notes=_notes(layer, count, off, bool(claimed.all())),
    )


def _solving(weight: Tensor) -> float:
    """By how much solving for what the layer reads enlarges an error of its outputs, in the worst value."""
    if len(weight) < weight.shape[1]:
        return math.inf
    inverse, failed = torch.linalg.inv_ex(weight.T @ weight)
    worst = float(inverse.diagonal().max())
    return math.inf if bool(failed) or not worst > 0 else worst**0.5


def _labels(model: nn.Module, inputs: Tensor, exchange: Exchange, known: Knowledge) -> Tensor | None:
    """(n,): the output layer's gradient is sum_b (p_b - y_b) h_b / n, linear in p - y; None: not told."""
    last = trace_linear_layers(model, known.input)[-1]
    gradient = layer_gradient(exchange, known, last)
    if last.in_features < len(inputs) or gradient.scale is None:
        return None
    read = layer_input(model, last.name, inputs).double()
    total = gradient.weight.double() * gradient.scale  # (C, w)
    apart: Tensor = torch.linalg.lstsq(read.T, total.T, driver="gelsd").solution  # (n, C)
    return apart.argmin(1) if apart.shape[1] > 1 else (apart[:, 0] < 0).long()


def _replayed(exchange: Exchange, known: Knowledge, batch: Batch) -> float:
    """What the update differs by, over its size, from the one that this batch makes."""
    assert known.local is not None
    sent, ours = exchange.update.tensors, local_update(exchange.broadcast, batch, known.local).tensors
    apart = math.hypot(*(float((sent[name].double() - t.double()).norm()) for name, t in ours.items()))
    return apart / max(1e-300, math.hypot(*(float(t.double().norm()) for t in sent.values())))


def _notes(layer: LinearLayer, count: int, off: float, claimed: bool) -> tuple[str, ...]:
    notes = [
        f"Read from layer '{layer.name}' through batch norm in train mode, by the statistics that were sent: "
        f"the {count} points of the gradient's row space of which the next layer reads what lies in its own "
        "gradient's.",
        f"The update that these examples make differs from the one received by {off:.1e} of its size.",
    ]
    if layer.out_features < layer.in_features:
        notes.append(
            f"Only the examples' differences are sure: the mean that they share has {layer.in_features} "
            f"values, of which the statistics of {layer.out_features} neurons say as many sums."
        )
    elif not claimed:
        notes.append("They are not claimed: rounding leaves values open, or copies that are nearly alike.")
    return tuple(notes)
