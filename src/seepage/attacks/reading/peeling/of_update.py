"""A peeling of one layer of an update, with all that is known of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from seepage.attacks.reading.peeling.codes import Code, choose_code
from seepage.attacks.reading.peeling.loop import Peeling
from seepage.attacks.reading.peeling.residual import Residual, delta_rounding
from seepage.attacks.reading.products import as_computed
from seepage.attacks.reading.scale import expected_kappa
from seepage.attacks.reading.unmixing.by_next_layer import NextLayerUnmixer
from seepage.attacks.reading.unmixing.by_signals import SignalUnmixer
from seepage.attacks.reading.unmixing.starts import made_up_inputs
from seepage.attacks.reading.unmixing.unmix import Unmixer
from seepage.core.types import Exchange, Knowledge, UpdateKind
from seepage.models.between import next_linear
from seepage.models.gradients import Decode, LayerGradient, layer_gradient
from seepage.models.layers import LinearLayer
from seepage.models.signals import BackwardSignals
from seepage.protocol.losses import OF_NUMBERS


def peeling_of(
    exchange: Exchange,
    known: Knowledge,
    layer: LinearLayer,
    *,
    decode: Decode | None = None,
    budget: float | None = None,
    rounded: int = 1,
) -> Peeling:
    """Before anything is read. rounded: how often each weight of a difference was, beside its own steps."""
    model, gradient = exchange.broadcast.model, layer_gradient(exchange, known, layer)
    # The range of raw values says nothing about values that were normalised in a way nobody told.
    spec = replace(known.input, value_range=None) if known.normalised else known.input
    code = choose_code(model, layer, spec, decode=decode, seed=known.seed)
    signals = BackwardSignals(model, layer, known.input, loss=known.loss)
    made_up = made_up_inputs(model, layer, known.input, model_units=known.normalised, seed=known.seed)
    by_next = _by_next(exchange, known, layer, signals, made_up, rounded)
    sparse = layer.followed_by_relu or by_next is None
    return Peeling(
        _residual(exchange, gradient, layer, code, signals, seed=known.seed, rounded=rounded),
        signals,
        code,
        unmixer=Unmixer(signals.parameters, made_up, seed=known.seed) if sparse else None,
        by_next=by_next,
        by_signals=None
        if layer.followed_by_relu or known.loss in OF_NUMBERS
        else SignalUnmixer(signals, made_up, seed=known.seed),
        kappa=expected_kappa(exchange, known),
        budget=budget,
    )


def _by_next(
    exchange: Exchange,
    known: Knowledge,
    layer: LinearLayer,
    signals: BackwardSignals,
    made_up: Callable[[int], Tensor],
    rounded: int,
) -> NextLayerUnmixer | None:
    """Where a linear layer reads what an activation makes of this one."""
    between = next_linear(signals.model, layer, known.input)
    if between is None:
        return None
    after = BackwardSignals(signals.model, between.next, known.input, loss=known.loss)
    gradient = layer_gradient(exchange, known, between.next)
    residual = _residual(exchange, gradient, between.next, None, after, seed=known.seed, rounded=rounded)
    return NextLayerUnmixer(signals, between, residual, after, made_up, seed=known.seed)


def _residual(
    exchange: Exchange,
    gradient: LayerGradient,
    layer: LinearLayer,
    code: Code | None,
    signals: BackwardSignals,
    *,
    seed: int,
    rounded: int,
) -> Residual:
    """Weight deltas are differences of float numbers: their rounding goes with the weights."""
    bounds = None if code is None else code.bounds()
    groups = 1 if bounds is None else len(bounds[0])
    residual = Residual(
        gradient,
        groups=groups,
        seed=seed,
        signal_rounding=signals.rounding,
        computed=as_computed(exchange, gradient),
    )
    if exchange.update.kind is UpdateKind.DELTA and layer.bias is not None:
        model = exchange.broadcast.model
        weight, bias = (model.get_parameter(name).detach() for name in (layer.weight, layer.bias))
        # Every step rounds the new weights once more.
        each = [
            ((gradient.steps or 1) * rounded) ** 0.5 * part
            for part in delta_rounding(weight, bias, precision=signals.precision)
        ]
        residual.set_rounding(*each)
        if gradient.scale is None:
            residual.factor = -1.0  # the learning rate is unknown, but a step goes downhill
    return residual
