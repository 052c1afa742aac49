"""Was this very example in the batch? Three tests of an update against examples that a server has at hand.

dot: n <g_x, G> / |g_x|^2, which is 1 plus what the others' gradients have in common with x's own.
cosine: of g_x and G (Li et al. 2022, "Effective passive membership inference attacks in federated learning").
span: the gradient of a dense layer is a sum of outer products, sum_i d_i a_i^T, so its rows span what the
batch's examples fed it. An example that was there lies in this span; another one does not, unless the batch
holds as many as the layer has rows or columns, where nothing is said (the idea of Petrov et al. 2024).

The examples that are asked about come from the caller. They are judged by nothing but the update and the
model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.core.errors import DataError, NotApplicable
from seepage.core.types import Batch, Broadcast, Exchange, Knowledge, LocalTraining, UpdateKind
from seepage.models.gradients import layer_gradient
from seepage.models.hooks import layer_input
from seepage.models.layers import LinearLayer, trace_linear_layers
from seepage.protocol import local_update

_RANK = 1e-5
"""Singular values below this share of the largest are rounding: a hundred times single precision's. Tested:
test_the_span_lies_on_a_plateau."""


@dataclass(frozen=True, kw_only=True)
class Membership:
    """(k,) each: the larger, the likelier the example was in the batch."""

    dot: Tensor
    """1 and more for a member whose gradient the others do not cancel."""
    cosine: Tensor
    span: Tensor | None
    """Minus log10 of the share of the example that lies outside the span: above 3 for members, below 1 for
    most others. None: no layer tells."""
    layer: str | None
    """Where the span was taken."""


def membership(exchange: Exchange, known: Knowledge, suspects: Batch) -> Membership:
    """How much the update of `exchange` looks as if each suspect, with its label, had been trained on.

    >>> from seepage.core.types import InputSpec, Modality
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.ReLU(), torch.nn.Linear(40, 3))
    >>> asked = Batch(torch.rand(8, 30), torch.arange(8) % 3)
    >>> sent = local_update(Broadcast(model), asked.select(slice(4)), LocalTraining())  # the first four
    >>> seen = Exchange(broadcast=Broadcast(model), update=sent, clients=(0,))
    >>> spec = InputSpec(modality=Modality.TABULAR, shape=(30,), num_classes=3)
    >>> found = membership(seen, Knowledge(input=spec), asked)
    >>> (found.span > 3).tolist()
    [True, True, True, True, False, False, False, False]
    """
    if len(suspects) == 0:
        raise DataError("there is no example to ask about: give at least one, with its label.")
    update, model = exchange.update, exchange.broadcast.model
    if update.num_examples is None:
        raise NotApplicable(
            "the number of examples behind the update was not sent, so one example's share in it is not "
            "known: grant = ['batch_size']."
        )
    sign = 1.0 if update.kind is UpdateKind.GRADIENT else -1.0
    whole = sign * _flat(update.tensors)
    one = LocalTraining(loss=known.loss)
    rows = [
        local_update(Broadcast(model), suspects.select(slice(i, i + 1)), one) for i in range(len(suspects))
    ]
    own = torch.stack([_flat({name: row.tensors[name] for name in update.tensors}) for row in rows])
    product, length = own @ whole, own.norm(dim=1).clamp_min(1e-300)
    scale = _scale(exchange, known)
    layer, span = _span(exchange, known, suspects)
    return Membership(
        dot=update.num_examples * scale * product / length.square(),
        cosine=product / (length * whole.norm().clamp_min(1e-300)),
        span=span,
        layer=layer,
    )


def _flat(tensors: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([tensor.detach().double().flatten().cpu() for tensor in tensors.values()])


def _scale(exchange: Exchange, known: Knowledge) -> float:
    """From minus a delta to a mean gradient; 1 where the learning rate is not known, and for gradients."""
    local, count = known.local, exchange.update.num_examples
    if exchange.update.kind is UpdateKind.GRADIENT or local is None or count is None:
        return 1.0
    return 1.0 / (local.lr * local.num_steps(max(1, count // len(exchange.clients))))


def _span(exchange: Exchange, known: Knowledge, suspects: Batch) -> tuple[str | None, Tensor | None]:
    """Of the first dense layer whose gradient has a lower rank than it could have."""
    model = exchange.broadcast.model
    for layer in trace_linear_layers(model, known.input):
        if not layer.per_example or layer.weight not in exchange.update.tensors:
            continue
        basis = _row_space(exchange, known, layer)
        if basis is None:
            continue
        fed = layer_input(model, layer.name, suspects.inputs).double().cpu()  # (k, m)
        outside = fed - (fed @ basis.T) @ basis
        share = outside.norm(dim=1) / fed.norm(dim=1).clamp_min(1e-300)
        return layer.name, -share.clamp_min(1e-12).log10()
    return None, None


def _row_space(exchange: Exchange, known: Knowledge, layer: LinearLayer) -> Tensor | None:
    """(rank, m) an orthonormal basis; None where the rank is as large as can be: some may be left out.

    Rows of silent neurons are zero, and the rows of a softmax layer sum to zero: they are no evidence.
    """
    gradient = layer_gradient(exchange, known, layer).weight.double().cpu()
    _, sizes, basis = torch.linalg.svd(gradient, full_matrices=False)
    rank = int((sizes > _RANK * sizes.max()).sum())
    active = int((gradient.abs().amax(dim=1) > 0).sum())
    return basis[:rank] if 0 < rank < min(active - 1, gradient.shape[1]) else None
