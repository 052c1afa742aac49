"""What single rows of a linear layer's gradient show: candidates, and which of them are claimed.

x = G_w[i] / G_b[i] (Boenisch et al. 2021, eq. 5) for every row whose quotient can be an example.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from seepage.attacks.reading.claims import HALF_SURE, Candidates, Claims, on_the_grid, quotient_bounds, vouch
from seepage.attacks.reading.products import as_computed, best_proven, joint_evidence, product_evidence
from seepage.attacks.reading.rows import RowScan, agreeing_rows, representatives, scan_rows
from seepage.attacks.reading.scale import expected_kappa, scale_note
from seepage.attacks.reading.union import merge_claims
from seepage.core.types import (
    INPUT_SPACE,
    Exchange,
    InputSpec,
    Knowledge,
    Modality,
    Reconstruction,
    RowCount,
    UpdateKind,
)
from seepage.models.gradients import Decode, LayerGradient, layer_gradient
from seepage.models.hooks import layer_input
from seepage.models.invertible import inputs_of
from seepage.models.layers import LinearLayer, trace_linear_layers
from seepage.models.precision import EXACT
from seepage.models.signals import BackwardSignals
from seepage.models.tokens import EXACT_LOOK_UP, tokens_of
from seepage.protocol.losses import OF_NUMBERS


@dataclass(frozen=True)
class _Readings:
    """Distinct candidates, each with the row it is read from."""

    rows: Tensor
    """(k,) representative row."""
    support: Tensor
    """(k,) rows that agree with it."""
    counts: RowCount
    evidence: Tensor | None
    """(k,) that it is the product of one example; see `products`. None: the update does not show it."""


def plain_readings(
    exchange: Exchange,
    known: Knowledge,
    layer: LinearLayer,
    *,
    decode: Decode | None = None,
    rows_only: bool = False,
) -> Reconstruction:
    """Everything that single rows of one layer's gradient show; the arguments are those of `read_layer`."""
    model = exchange.broadcast.model
    received = gradient = layer_gradient(exchange, known, layer)
    if decode is not None:
        gradient, layer = decode.gradient(gradient), replace(layer, reads="input")
    columns = _column_groups(layer, known.input)
    scan = scan_rows(gradient.weight, gradient.bias, groups=columns, seed=known.seed)
    # Where the normalisation is not told, the raw value range says nothing about model values.
    spec = replace(known.input, value_range=None) if known.normalised else known.input
    # An exact look-up asks for more than agreement does: a trace of another text in the strongest of
    # several agreeing rows would hide what the others show in the clear.
    each_row = rows_only and layer.reads == "embedding"
    rows = _plausible(scan, layer, spec).nonzero().squeeze(1)
    computed = None if rows_only or layer.reads == "embedding" else as_computed(exchange, received)
    evidence = None
    if computed is not None:
        evidence = product_evidence(received.weight, received.bias, rows, computed)
    readings = _readings(scan, gradient, rows, evidence, merge=not each_row)
    found = _candidates(gradient, readings.rows)  # (k, m), model units
    decoded = _decode(found, layer, known.input, model, nearest=not rows_only)
    claims = Claims.none(len(found))
    if not rows_only:
        told = replace(known, input=spec)
        decoded, claims = _claims(exchange, told, layer, gradient, received, decoded, readings)
    values, space = decoded.values, decoded.space
    read = Reconstruction(
        values=known.input.to_raw(values) if _is_numeric_input(space, known.input) else values,
        space=space,
        model_units=space == INPUT_SPACE and known.normalised,
        support=readings.support,
        rows=readings.counts,
    )
    if rows_only:
        return read
    read = replace(
        read,
        claimed=claims.claimed,
        confidence=1.0 / (1.0 + claims.mismatch / HALF_SURE),
        if_declared=claims.if_declared,
        notes=(*_notes(layer, gradient, readings, exchange, known, claims), *decoded.notes),
    )
    return merge_claims(read, known.input)


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
    slack = EXACT * (most - least)  # rounding may carry an honest candidate outside
    return ok & (low >= least - slack).all(dim=1) & (high <= most + slack).all(dim=1)


def _readings(
    scan: RowScan, gradient: LayerGradient, rows: Tensor, evidence: Tensor | None, *, merge: bool
) -> _Readings:
    groups = agreeing_rows(scan.sketch[rows]) if merge else torch.arange(len(rows))
    best, support = representatives(groups, best_proven(gradient.bias[rows].abs(), evidence))
    return _Readings(
        rows=rows[best.to(rows.device)],
        support=support,
        counts=RowCount(total=len(scan.active), active=int(scan.active.sum())),
        evidence=None if evidence is None else joint_evidence(groups, evidence),
    )


def _candidates(gradient: LayerGradient, rows: Tensor) -> Tensor:
    """x = G_w[i] / G_b[i] (eq. 5) for the chosen rows only."""
    return gradient.weight[rows].div_(gradient.bias[rows].unsqueeze(1))


@dataclass(frozen=True)
class _Decoded:
    """Candidates as values of the model's input, where the layer shows that; else its features."""

    values: Tensor
    space: str
    features: Tensor
    """(k, m) what was read."""
    on_alphabet: Tensor
    """(k,) bool: every position is a row of the embedding table."""
    notes: tuple[str, ...] = ()


def _decode(
    found: Tensor, layer: LinearLayer, spec: InputSpec, model: nn.Module, *, nearest: bool
) -> _Decoded:
    """What the model is fed, where the layer shows that; otherwise the layer's features as they are."""
    no = torch.zeros(len(found), dtype=torch.bool, device=found.device)
    if layer.reads == "input":
        return _Decoded(found.reshape(-1, *spec.shape), INPUT_SPACE, found, no)
    if layer.reads == "embedding" and layer.embedding is not None:
        table = model.get_parameter(layer.embedding).detach().to(found)
        tokens, distance = tokens_of(found.unflatten(1, (-1, table.shape[1])), table, nearest=nearest)
        looked_up = (distance <= EXACT_LOOK_UP).all(dim=1)
        exact = int(looked_up.sum())
        note = f"{exact} of {len(found)} candidate texts are rows of the embedding table at every position"
        note += (
            "; the others are mixtures or noisy, read as the nearest tokens." if exact < len(found) else "."
        )
        return _Decoded(tokens.reshape(-1, *spec.shape), INPUT_SPACE, found, looked_up, (note,))
    inputs = inputs_of(model, layer, found, spec)
    if inputs is not None:
        note = "The model is reversible: features were run backwards to its input."
        return _Decoded(inputs, INPUT_SPACE, found, no, (note,))
    return _Decoded(found, layer.name, found, no)


def _is_numeric_input(space: str, spec: InputSpec) -> bool:
    return space == INPUT_SPACE and spec.modality is not Modality.TEXT


def _claims(
    exchange: Exchange,
    known: Knowledge,
    layer: LinearLayer,
    gradient: LayerGradient,
    received: LayerGradient,
    decoded: _Decoded,
    readings: _Readings,
) -> tuple[_Decoded, Claims]:
    """Which candidates the attack vouches for (`parts.claims`); those are put on their grid if they have one.

    None after several local steps, and none of inner features, unless a single example made them.
    """
    k, spec, model = len(decoded.values), known.input, exchange.broadcast.model
    alone = exchange.update.num_examples == 1
    if (
        k == 0
        or gradient.steps != 1
        or known.loss in OF_NUMBERS
        or (decoded.space != INPUT_SPACE and not alone)
    ):
        return decoded, Claims.none(k)
    layer_now = _as_in_the_model(model, layer, spec)
    signals = BackwardSignals(model, layer_now, spec, loss=known.loss)
    names = (layer_now.weight, layer_now.bias)
    weights = [model.get_parameter(name).detach() for name in names if name is not None]
    differs = exchange.update.kind is UpdateKind.DELTA
    bound = quotient_bounds(
        gradient,
        readings.rows,
        decoded.features,
        weights=(weights[0], weights[1], signals.precision) if differs else None,
    )
    on_alphabet, spoiled, unit = decoded.on_alphabet, torch.zeros_like(decoded.on_alphabet), None
    features, snapped, accidents = decoded.features, decoded.features, 0.0
    if layer.reads == "input":
        grid = on_the_grid(features, bound, spec)
        on_alphabet, spoiled, snapped = grid.exact, grid.spoiled, grid.features
        unit, accidents = _unit(spec), float(grid.accident.sum())
        if layer_now != layer:  # a crafted pass-through stands before it
            features = layer_input(model, layer_now.name, decoded.values.to(weights[0].dtype)).to(features)
    claims = vouch(
        Candidates(
            rows=readings.rows,
            support=readings.support,
            features=features,
            on_alphabet=on_alphabet,
            spoiled=spoiled,
            bound=bound,
            unit=unit,
            all_agree=alone and k == 1 and int(readings.support[0]) == readings.counts.active,
            accidents=accidents,
            evidence=readings.evidence,
            computed=as_computed(exchange, gradient) if readings.evidence is not None else None,
            differs=differs,
            tokens=layer.reads == "embedding",
        ),
        gradient,
        signals,
        kappa=expected_kappa(exchange, known),
        at_layer=None if features.shape[1] == gradient.weight.shape[1] else received,
    )
    if layer.reads == "input":
        settled = (claims.claimed.to(on_alphabet.device) & on_alphabet).unsqueeze(1)
        values = torch.where(settled, snapped, decoded.features).reshape(decoded.values.shape)
        decoded = replace(decoded, values=values)
    return decoded, claims


def _as_in_the_model(model: nn.Module, layer: LinearLayer, spec: InputSpec) -> LinearLayer:
    """The layer as the model runs it: a crafted one is read as if it saw the input itself."""
    return next((each for each in trace_linear_layers(model, spec) if each.name == layer.name), layer)


def _unit(spec: InputSpec) -> float | None:
    """Range of the values in model units."""
    if spec.value_range is None:
        return None
    low, high = spec.value_range
    return (high - low) / (1.0 if spec.std is None else max(spec.std))


def _notes(
    layer: LinearLayer,
    gradient: LayerGradient,
    readings: _Readings,
    exchange: Exchange,
    known: Knowledge,
    claims: Claims,
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
    notes += scale_note(claims.scale, expected_kappa(exchange, known), exchange.update)
    return tuple(notes)
