"""Was this very example in the batch? Four tests of an update against examples that a server has at hand.

dot: n <g_x, G> / |g_x|^2, which is 1 plus what the others' gradients have in common with x's own.
cosine: of g_x and G (Li et al. 2022, "Effective passive membership inference attacks in federated learning").
matched: the dot product behind a filter that takes away what gradients have in common: C^-1 with C the
covariance of public examples' gradients (a matched filter; it needs `auxiliary_data`). 1 for a member, about
0 for others.
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
from seepage.core.types import Batch, Exchange, Knowledge, LocalTraining, UpdateKind
from seepage.models.gradients import layer_gradient
from seepage.models.hooks import layer_input
from seepage.models.layers import LinearLayer, trace_linear_layers
from seepage.protocol import local_update

_RANK = 1e-5
"""Singular values below this share of the largest are rounding: a hundred times single precision's. Tested:
test_the_span_lies_on_a_plateau."""


_NOISE = 1e-3
"""Share of all public gradients' energy that is noise in every direction. Chosen on MNIST and CIFAR-10
batches of seeds 500 and 501. Tested: test_the_filter_lies_on_a_plateau."""
_PUBLIC = 256
"""Public examples that are used at most. Cost: one gradient each, all of them held at once."""


@dataclass(frozen=True, kw_only=True)
class Membership:
    """(k,) each: the larger, the likelier the example was in the batch."""

    dot: Tensor
    """1 and more for a member whose gradient the others do not cancel."""
    cosine: Tensor
    matched: Tensor | None
    """About 1 for members and 0 for others. None: there are no public examples."""
    span: Tensor | None
    """Minus log10 of the share of the example that lies outside the span: above 3 for members, below 1 for
    most others. None: no layer tells."""
    layer: str | None
    """Where the span was taken."""


def membership(exchange: Exchange, known: Knowledge, suspects: Batch) -> Membership:
    """How much the update of `exchange` looks as if each suspect, with its label, had been trained on.

    >>> from seepage.core.types import Broadcast, InputSpec, Modality
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
    update = exchange.update
    if update.num_examples is None:
        raise NotApplicable(
            "the number of examples behind the update was not sent, so one example's share in it is not "
            "known: grant = ['batch_size']."
        )
    whole = _scale(exchange, known) * _flat(update.tensors)
    own = _gradients(exchange, known, suspects)
    product, length = own @ whole, own.norm(dim=1).clamp_min(1e-300)
    layer, span = _span(exchange, known, suspects)
    return Membership(
        dot=update.num_examples * product / length.square(),
        cosine=product / (length * whole.norm().clamp_min(1e-300)),
        matched=_matched(exchange, known, own, whole),
        span=span,
        layer=layer,
    )


def _flat(tensors: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([tensor.detach().double().flatten().cpu() for tensor in tensors.values()])


def _scale(exchange: Exchange, known: Knowledge) -> float:
    """From an update to a mean gradient; of a delta only the sign is turned where the rate is not known."""
    local, count = known.local, exchange.update.num_examples
    if exchange.update.kind is UpdateKind.GRADIENT:
        return 1.0
    if local is None or count is None:
        return -1.0
    return -1.0 / (local.lr * local.num_steps(max(1, count // len(exchange.clients))))


def _gradients(exchange: Exchange, known: Knowledge, batch: Batch) -> Tensor:
    """(k, d) of each example by itself, under the model that was sent."""
    rows = []
    for i in range(len(batch)):
        one = local_update(exchange.broadcast, batch.select(slice(i, i + 1)), LocalTraining(loss=known.loss))
        rows.append(_flat({name: one.tensors[name] for name in exchange.update.tensors}))
    return torch.stack(rows)


def _matched(exchange: Exchange, known: Knowledge, own: Tensor, whole: Tensor) -> Tensor | None:
    """(x - m)^T C^-1 n (G - m) over (x - m)^T C^-1 (x - m), m and C of the public examples' gradients.

    C = B^T B / p + l with (p, d) centred gradients B, so that C^-1 v = (v - B^T (p l + B B^T)^-1 B v) / l
    (Woodbury) takes one system of p equations.
    """
    public = known.auxiliary
    if public is None or len(public) < 2:
        return None
    rows = _gradients(exchange, known, public.select(slice(_PUBLIC)))
    middle = rows.mean(dim=0)
    centred = rows - middle
    gram = centred @ centred.T
    noise = _NOISE * float(gram.trace())  # p times l
    system = gram + max(noise, 1e-300) * torch.eye(len(rows), dtype=gram.dtype)
    x, rest = own - middle, (exchange.update.num_examples or 1) * (whole - middle)
    seen = x @ centred.T  # (k, p)
    filtered = torch.linalg.solve(system, torch.cat([(centred @ rest).unsqueeze(1), seen.T], dim=1))
    signal = x @ rest - seen @ filtered[:, 0]
    energy = x.square().sum(dim=1) - (seen * filtered[:, 1:].T).sum(dim=1)
    shares: Tensor = signal / energy.clamp_min(1e-300)
    return shares


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
