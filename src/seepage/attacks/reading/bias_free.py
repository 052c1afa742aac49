"""Reading a first layer that has no bias: directions from rows, their length from the grid of the values.

A row that a single example activates is c * x. Without G_b nothing says what c is, but raw values are not
negative, which gives its sign, and whole numbers of grey steps, which gives its size (`direction_grid`).
What has no grid stays a direction: it is returned scaled to the range, and nobody vouches for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from seepage.attacks.reading.claims import HALF_SURE, Candidates, Claims, vouch
from seepage.attacks.reading.direction_grid import LEVELS, grey_levels
from seepage.attacks.reading.peeling.tolerances import BEYOND, FINE
from seepage.attacks.reading.rows import agreeing_rows, representatives, scan_rows
from seepage.attacks.reading.scale import TOGETHER, expected_kappa, scale_note
from seepage.core.types import (
    INPUT_SPACE,
    Exchange,
    InputSpec,
    Knowledge,
    Reconstruction,
    RowCount,
    UpdateKind,
)
from seepage.models.gradients import LayerGradient, layer_gradient
from seepage.models.layers import LinearLayer, trace_linear_layers
from seepage.models.signals import BackwardSignals
from seepage.protocol.losses import OF_NUMBERS


def choose_bias_free(model: nn.Module, spec: InputSpec, name: str | None) -> LinearLayer | None:
    """The layer without a bias that reads the model's input, if it is the one to read; None: there is none.

    A layer with a bias that reads the input or embeddings is the better one. Without a ReLU behind it every
    example reaches every row, and no row is a multiple of one.
    """
    layers = trace_linear_layers(model, spec)
    usable = [
        layer
        for layer in layers
        if layer.bias is None
        and layer.reads == "input"
        and layer.per_example
        and layer.trained
        and layer.followed_by_relu
    ]
    if name is not None:
        return next((layer for layer in usable if layer.name == name), None)
    better = any(layer.bias and layer.reads != "features" and layer.per_example for layer in layers)
    return usable[0] if usable and not better else None


@dataclass(frozen=True)
class _Directions:
    """Distinct rows of one sign."""

    rows: Tensor
    support: Tensor
    values: Tensor
    """(k, m) not negative."""
    sign: Tensor


def read_bias_free(exchange: Exchange, known: Knowledge, layer: LinearLayer) -> Reconstruction:
    """Everything that single rows of a layer without a bias show."""
    gradient = layer_gradient(exchange, known, layer)
    active = (gradient.weight != 0).any(1)
    counts = RowCount(total=len(active), active=int(active.sum()))
    found = _directions(gradient, active, known)
    spec = known.input
    levels = torch.zeros(len(found.rows), dtype=torch.long, device=found.rows.device)
    if _has_grid(known) and len(found.rows):
        levels = grey_levels(found.values, gradient.precision.relative)
    most = _levels(levels)
    levels = torch.where(levels <= most, levels, torch.zeros_like(levels))
    on_grid = levels > 0
    values = _scaled(found.values, levels, most, known)
    claims = _claims(exchange, known, layer, gradient, found, values, on_grid)
    return Reconstruction(
        values=values.reshape(-1, *spec.shape),
        space=INPUT_SPACE,
        model_units=known.normalised,
        claimed=claims.claimed,
        confidence=1.0 / (1.0 + claims.mismatch / HALF_SURE),
        support=found.support,
        rows=counts,
        if_declared=claims.if_declared,
        notes=_notes(layer, gradient, known, found, on_grid, most, claims, exchange),
    )


def _levels(largest: Tensor) -> int:
    """How many grey levels there are: the fewest that hold the largest value of most pictures."""
    fitting = largest[largest > 0]
    usual = int(fitting.median()) if len(fitting) else LEVELS[-1]
    return next(levels for levels in LEVELS if levels >= usual)


def _has_grid(known: Knowledge) -> bool:
    """Raw values start at 0 and are fed as they are."""
    spec = known.input
    raw = spec.mean is None and spec.std is None and not known.normalised
    return raw and spec.value_range is not None and spec.value_range[0] == 0.0


def _directions(gradient: LayerGradient, active: Tensor, known: Knowledge) -> _Directions:
    """One row for each direction. Where values cannot be negative, rows of both signs are mixtures."""
    index = active.nonzero().squeeze(1)
    rows = gradient.weight[index]
    far, near = rows.amax(1), rows.amin(1)
    sign = torch.where(far >= -near, 1.0, -1.0).to(rows)
    if _not_negative(known):
        one = torch.minimum(far.abs(), near.abs()) * (far * near < 0) <= FINE * torch.maximum(far, -near)
        index, rows, sign = index[one], rows[one], sign[one]
    if not len(index):
        none = torch.zeros(0, dtype=torch.long, device=index.device)
        return _Directions(none, none.cpu(), rows, sign)
    size = rows.abs().amax(1)
    scan = scan_rows(rows, sign * size, seed=known.seed)
    best, support = representatives(agreeing_rows(scan.sketch), size)
    best = best.to(index.device)
    values = rows[best] * sign[best].unsqueeze(1)
    return _Directions(
        index[best], support, values.clamp_min_(0.0) if _not_negative(known) else values, sign[best]
    )


def _not_negative(known: Knowledge) -> bool:
    spec = known.input
    raw = spec.mean is None and not known.normalised
    return raw and spec.value_range is not None and spec.value_range[0] >= 0.0


def _scaled(values: Tensor, levels: Tensor, most: int, known: Knowledge) -> Tensor:
    """(k, m) raw values: whole grey steps where a grid fits, else the largest at the end of the range."""
    if not len(values):
        return values
    unit = values / values.abs().amax(1, keepdim=True).clamp_min(torch.finfo(values.dtype).tiny)
    span = known.input.value_range
    high = 1.0 if span is None or known.normalised else span[1]
    steps = (unit.double() * levels.unsqueeze(1)).round() / most
    return torch.where((levels > 0).unsqueeze(1), steps * high, unit.double() * high).to(values)


def _claims(
    exchange: Exchange,
    known: Knowledge,
    layer: LinearLayer,
    gradient: LayerGradient,
    found: _Directions,
    values: Tensor,
    on_grid: Tensor,
) -> Claims:
    """Those on the grid whose length is what some label's signal makes it: row = d_i(x, y) x / n."""
    index = on_grid.nonzero().squeeze(1)
    claims = Claims.none(len(values))
    if not len(index) or known.loss in OF_NUMBERS:
        return claims
    x, rows = values[index], found.rows[index]
    # The least squares length of the row along x is what a bias would have received.
    length = (gradient.weight[rows].double() * x).sum(1) / x.double().square().sum(1)
    bias = torch.zeros(len(gradient.weight), dtype=torch.float64, device=length.device)
    bias[rows] = length
    no = torch.zeros(len(index), dtype=torch.bool, device=length.device)
    signals = BackwardSignals(exchange.broadcast.model, layer, known.input, loss=known.loss)
    given = vouch(
        Candidates(
            rows=rows,
            support=found.support[index.cpu()],
            features=x,
            on_alphabet=~no,
            spoiled=no,
            bound=torch.zeros_like(length),
            unit=None,
            all_agree=False,
            evidence=None,
            differs=exchange.update.kind is UpdateKind.DELTA,
            believe_grid=False,
        ),
        replace(gradient, bias=bias),
        signals,
        kappa=expected_kappa(exchange, known),
        certain=False,
        received=gradient,
    )
    # The grid proves the direction; the length only the signal: no looser than it is known, and not alone.
    fits = given.claimed & (given.mismatch <= BEYOND * signals.rounding)
    if given.scale is None or (given.scale.votes < TOGETHER and exchange.update.num_examples != 1):
        fits = torch.zeros_like(fits)
    mismatch = claims.mismatch.to(given.mismatch)
    claims.claimed[index.cpu()], mismatch[index.cpu()] = fits, given.mismatch
    return Claims(claims.claimed, mismatch, given.scale, given.if_declared and bool(fits.any()))


def _notes(
    layer: LinearLayer,
    gradient: LayerGradient,
    known: Knowledge,
    found: _Directions,
    on_grid: Tensor,
    most: int,
    claims: Claims,
    exchange: Exchange,
) -> tuple[str, ...]:
    notes = [
        f"Read from layer '{layer.name}', which sees the model's input and has no bias: a row that one "
        "example activates shows its direction, but not its length or sign."
    ]
    if not len(found.rows):
        return (*notes, "No row can be a multiple of one example: nothing was read.")
    if _has_grid(known):
        notes.append(
            f"{int(on_grid.sum())} of {len(on_grid)} directions become whole grey steps at one length, on a "
            f"grid of {most} levels, and were taken at that length; the others are mixtures or on no grid, "
            "and are shown with their largest value at the end of the range."
        )
    else:
        why = (
            "are normalised"
            if known.normalised or known.input.mean is not None
            else "have no known range from 0"
        )
        notes.append(
            f"The values {why}, so that no grid gives the length of a single row: directions are shown with "
            "their largest value at the end of the range (1 where it is unknown), and none is claimed."
        )
    if gradient.steps != 1:
        notes.append("The update sums several (or an unknown number of) local steps: none is claimed.")
    return (*notes, *scale_note(claims.scale, expected_kappa(exchange, known), exchange.update))
