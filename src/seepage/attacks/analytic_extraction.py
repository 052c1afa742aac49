"""Passive extraction from a linear layer (Geiping et al. 2020, Prop. 3.1; Boenisch et al. 2021, Section 5).

For one example, every row of a biased linear layer's gradient is the layer's input times a number, and the
bias gradient is that number. For a mini-batch this still holds for each neuron that exactly one example
activates. No optimisation, no crafted weights, no knowledge of the labels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from seepage.attacks.base import PerUpdateAttack
from seepage.attacks.parts.certify import TOLERANCE, Certificate, certify
from seepage.attacks.parts.crafting.routes import Decode
from seepage.attacks.parts.gradients import LayerGradient, layer_gradient
from seepage.attacks.parts.labels import infer_label_counts
from seepage.attacks.parts.layers import FROZEN, LinearLayer, trace_linear_layers
from seepage.attacks.parts.reversible import inputs_of
from seepage.attacks.parts.rows import RowScan, agreeing_rows, representatives, scan_rows
from seepage.attacks.parts.tokens import EXACT_LOOK_UP, tokens_of
from seepage.errors import NotApplicable
from seepage.registry import unknown
from seepage.types import INPUT_SPACE, Exchange, InputSpec, Knowledge, Modality, Reconstruction, RowCount

_OUT_OF_RANGE = 1e-3
"""Share of the value range by which rounding may carry an honest candidate outside it."""


@dataclass(frozen=True)
class _Readings:
    """Distinct candidates, each with the row it is read from."""

    rows: Tensor
    """(k,) representative row."""
    support: Tensor
    """(k,) rows that agree with it."""
    counts: RowCount


class AnalyticExtraction(PerUpdateAttack):
    """Divide weight-gradient rows by bias gradients and keep what can be an individual example.

    >>> from seepage.federation import local_update
    >>> from seepage.types import Batch, Broadcast, LocalTraining
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> spec = InputSpec(modality=Modality.IMAGE, shape=(1, 2, 2), num_classes=3)
    >>> secret = Batch(torch.rand(1, 1, 2, 2), torch.tensor([2]))
    >>> sent = local_update(Broadcast(model), secret, LocalTraining())
    >>> seen = Exchange(broadcast=Broadcast(model), update=sent, clients=(0,))
    >>> found = AnalyticExtraction().run([seen], Knowledge(input=spec))
    >>> len(found), torch.allclose(found.values, secret.inputs, atol=1e-5)
    (1, True)
    """

    def __init__(self, *, layer: str | None = None) -> None:
        self.layer = layer

    def check(self, model: nn.Module, known: Knowledge) -> None:
        choose_layer(model, known.input, self.layer)

    def invert(self, exchange: Exchange, known: Knowledge) -> Reconstruction:
        layer = choose_layer(exchange.broadcast.model, known.input, self.layer)
        return read_layer(exchange, known, layer)


def read_layer(
    exchange: Exchange,
    known: Knowledge,
    layer: LinearLayer,
    *,
    decode: Decode | None = None,
    rows_only: bool = False,
) -> Reconstruction:
    """Everything that single rows of one layer's gradient show.

    decode: undoes what crafted layers did to the input on its way to `layer`; afterwards the layer reads
    as if it saw the model's input itself.
    rows_only: neither vouch for candidates nor infer labels, which take longer than the reading itself;
    texts are looked up exactly, row by row as in the paper, and mixtures are not read as their nearest
    tokens.
    """
    model = exchange.broadcast.model
    gradient = layer_gradient(exchange, known, layer)
    if decode is not None:
        gradient, layer = decode.gradient(gradient), replace(layer, reads="input")
    columns = _column_groups(layer, known.input)
    scan = scan_rows(gradient.weight, gradient.bias, groups=columns, seed=known.seed)
    # Where the normalisation is not told, the raw value range says nothing about model values.
    spec = replace(known.input, value_range=None) if known.normalised else known.input
    # An exact look-up asks for more than agreement does: a trace of another text in the strongest of
    # several agreeing rows would hide what the others show in the clear.
    each_row = rows_only and layer.reads == "embedding"
    readings = _readings(scan, gradient, _plausible(scan, layer, spec), merge=not each_row)
    found = _candidates(gradient, readings.rows)  # (k, m), model units
    values, space, decoding = _decode(found, layer, known.input, model, nearest=not rows_only)
    read = Reconstruction(
        values=known.input.to_raw(values) if _is_numeric_input(space, known.input) else values,
        space=space,
        model_units=space == INPUT_SPACE and known.normalised,
        support=readings.support,
        rows=readings.counts,
    )
    if rows_only:
        return read
    claims = _claims(exchange, known, layer, gradient, values, space, readings)
    counts, label_note = _label_counts(exchange, known)
    return replace(
        read,
        claimed=claims.mismatch <= TOLERANCE,
        confidence=1.0 / (1.0 + claims.mismatch / TOLERANCE),
        label_counts=counts,
        notes=(*_notes(layer, gradient, readings, exchange, claims), *decoding, *label_note),
    )


def analytic_extraction(*, layer: str | None = None) -> AnalyticExtraction:
    """Passive, exact: reads inputs (or features) straight from a linear layer's gradient, no optimisation.

    layer: name of the linear layer to read; by default the first one that reads the model's input, else
    the first one there is.
    """
    return AnalyticExtraction(layer=layer)


def choose_layer(model: nn.Module, spec: InputSpec, name: str | None) -> LinearLayer:
    """The layer to read, or NotApplicable with the reason."""
    layers = trace_linear_layers(model, spec)
    if name is not None:
        named = [layer for layer in layers if layer.name == name]
        if not named:
            raise NotApplicable(unknown("linear layer", name, [layer.name for layer in layers]))
        if why := _unsuitable(named[0]):
            raise NotApplicable(f"layer '{name}' {why}: name another layer, or none to have one chosen.")
        return named[0]
    suitable = [layer for layer in layers if not _unsuitable(layer)]
    if not suitable:
        first = next((type(m).__name__ for m in model.modules() if not list(m.children())), "nothing")
        reasons = "; ".join(f"'{layer.name}' {_unsuitable(layer)}" for layer in layers[:2])
        raise NotApplicable(
            f"the model begins with {first} and has no linear layer to read ({reasons or 'none at all'}): "
            "try an attack that optimises, or one that crafts weights."
        )
    return min(suitable, key=lambda layer: (layer.reads == "features", layer.index))


def _unsuitable(layer: LinearLayer) -> str:
    if layer.bias is None:
        return "has no bias, so nothing says by what to divide its rows"
    if not layer.per_example:
        return "is applied at several positions of one example, whose gradients are summed"
    if not layer.trained:
        return FROZEN
    return ""


def _column_groups(layer: LinearLayer, spec: InputSpec) -> int:
    """Columns with a mean and std of their own: channels of an image, columns of a table."""
    return len(spec.mean) if layer.reads == "input" and spec.mean is not None else 1


def _plausible(scan: RowScan, layer: LinearLayer, spec: InputSpec) -> Tensor:
    """(N,) rows whose quotient can be an example: readable and, where it is known, inside the value range."""
    ok = scan.active & scan.readable
    if layer.reads != "input" or spec.value_range is None:
        return ok
    low, high = scan.low, scan.high
    if spec.mean is not None and spec.std is not None:
        mean, std = low.new_tensor(spec.mean), low.new_tensor(spec.std)
        low, high = low * std + mean, high * std + mean
    least, most = spec.value_range
    slack = _OUT_OF_RANGE * (most - least)
    return ok & (low >= least - slack).all(dim=1) & (high <= most + slack).all(dim=1)


def _readings(scan: RowScan, gradient: LayerGradient, plausible: Tensor, *, merge: bool) -> _Readings:
    rows = plausible.nonzero().squeeze(1)
    groups = agreeing_rows(scan.sketch[rows]) if merge else torch.arange(len(rows))
    best, support = representatives(groups, gradient.bias[rows].abs())
    return _Readings(
        rows=rows[best.to(rows.device)],
        support=support,
        counts=RowCount(total=len(scan.active), active=int(scan.active.sum())),
    )


def _candidates(gradient: LayerGradient, rows: Tensor) -> Tensor:
    """x = G_w[i] / G_b[i] (eq. 5) for the chosen rows only."""
    return gradient.weight[rows].div_(gradient.bias[rows].unsqueeze(1))


def _decode(
    found: Tensor, layer: LinearLayer, spec: InputSpec, model: nn.Module, *, nearest: bool
) -> tuple[Tensor, str, tuple[str, ...]]:
    """What the model is fed, where the layer shows that; otherwise the layer's features as they are."""
    if layer.reads == "input":
        return found.reshape(-1, *spec.shape), INPUT_SPACE, ()
    if layer.reads == "embedding" and layer.embedding is not None:
        table = model.get_parameter(layer.embedding).detach()
        tokens, distance = tokens_of(found.unflatten(1, (-1, table.shape[1])), table, nearest=nearest)
        exact = int((distance <= EXACT_LOOK_UP).all(dim=1).sum())
        note = f"{exact} of {len(found)} candidate texts are rows of the embedding table at every position"
        note += (
            "; the others are mixtures or noisy, read as the nearest tokens." if exact < len(found) else "."
        )
        return tokens.reshape(-1, *spec.shape), INPUT_SPACE, (note,)
    inputs = inputs_of(model, layer, found, spec)
    if inputs is not None:
        return inputs, INPUT_SPACE, ("The model is reversible: features were run backwards to its input.",)
    return found, layer.name, ()


def _is_numeric_input(space: str, spec: InputSpec) -> bool:
    return space == INPUT_SPACE and spec.modality is not Modality.TEXT


def _claims(
    exchange: Exchange,
    known: Knowledge,
    layer: LinearLayer,
    gradient: LayerGradient,
    values: Tensor,
    space: str,
    readings: _Readings,
) -> Certificate:
    """Which candidates the attack vouches for: see `parts.certify`. None after several local steps."""
    k = len(values)
    nothing = Certificate(torch.full((k,), torch.inf), torch.zeros(k, dtype=torch.long), None)
    if k == 0:
        return nothing
    if exchange.update.num_examples == 1 and gradient.steps == 1:
        # One example: all rows show it (Prop. 3.1), in the input space or any other.
        return Certificate(torch.zeros(k), nothing.labels, 1)
    if space != INPUT_SPACE or gradient.scale is None or gradient.steps != 1:
        return nothing
    found = certify(
        exchange.broadcast.model,
        exchange.broadcast.model.get_submodule(layer.name),
        values,
        readings.rows,
        gradient.bias[readings.rows] * gradient.scale,
        loss=known.loss,
        num_examples=exchange.update.num_examples,
    )
    return Certificate(found.mismatch.cpu(), found.labels.cpu(), found.num_examples)


def _label_counts(exchange: Exchange, known: Knowledge) -> tuple[Tensor | None, tuple[str, ...]]:
    try:
        estimate = infer_label_counts(exchange, known)
    except NotApplicable as reason:
        return None, (f"Labels were not inferred: {reason}",)
    return estimate.counts, (f"Labels were inferred by {estimate.method}.", *estimate.notes)


def _notes(
    layer: LinearLayer,
    gradient: LayerGradient,
    readings: _Readings,
    exchange: Exchange,
    claims: Certificate,
) -> tuple[str, ...]:
    what = {"input": "the model's input", "embedding": "token embeddings", "features": "inner features"}
    notes = [f"Read from layer '{layer.name}', which sees {what[layer.reads]}."]
    if readings.counts.active == 0:
        notes.append(
            "The layer's gradient is zero everywhere: no neuron was activated, so nothing can be read."
        )
    if not layer.followed_by_relu and exchange.update.num_examples != 1:
        notes.append(
            "No ReLU follows this layer, so every example reaches every neuron and rows are mixtures."
        )
    if gradient.steps != 1:
        notes.append(
            "The update sums several (or an unknown number of) local steps, between which the weights moved: "
            "rows are approximations and none is claimed to be exact."
        )
    if exchange.update.num_examples is None and claims.num_examples is not None:
        notes.append(f"The batch size was inferred to be {claims.num_examples}.")
    return tuple(notes)
