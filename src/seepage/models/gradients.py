"""A layer's gradient out of an update, whether the client sent a gradient or a weight delta."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from seepage.core.errors import NotApplicable
from seepage.core.types import Exchange, Knowledge, LocalTraining, UpdateKind
from seepage.models.layers import LinearLayer
from seepage.models.precision import Precision, precision_of
from seepage.protocol.widening import wide


@dataclass(frozen=True)
class LayerGradient:
    """weight (N, m) and bias (N,) of one linear layer, up to the common factor `scale`.

    gradient = scale * tensors; `scale` is None where the server cannot know it. Ratios of weight to bias
    rows do not need it.
    """

    weight: Tensor
    bias: Tensor
    scale: float | None
    steps: int | None
    """Local steps the update was summed over; None where unknown. The ratio is exact only for 1."""
    precision: Precision = field(default_factory=lambda: Precision.of_type(torch.float32))
    """Of the numbers as they were received; the tensors are float32 at least."""


class Decode(Protocol):
    """Undoes what crafted layers do to the input, on the layer's inputs or on its gradient."""

    def __call__(self, features: Tensor, /) -> Tensor:
        """(k, m) inputs of the layer to (k, d) inputs of the model, in model units."""

    def gradient(self, gradient: LayerGradient) -> LayerGradient:
        """The gradient that a layer which reads the model's input itself would have, row by row."""


def layer_gradient(exchange: Exchange, known: Knowledge, layer: LinearLayer) -> LayerGradient:
    """Read `layer` from the update without copying it, but for half precision and weight decay.

    The bias gradient of a layer that has none is 0.
    """
    update = exchange.update
    received = [update.tensors[name].detach() for name in (layer.bias, layer.weight) if name is not None]
    precision = precision_of(received)
    weight = wide(received[-1])
    bias = weight.new_zeros(len(weight)) if layer.bias is None else wide(received[0])
    if update.kind is UpdateKind.GRADIENT:
        return LayerGradient(weight, bias, scale=1.0, steps=1, precision=precision)
    local = known.local
    if local is None:
        return LayerGradient(weight, bias, scale=None, steps=None, precision=precision)
    examples = update.num_examples
    # An aggregate's clients each ran their own steps on their share of the examples.
    steps = None if examples is None else local.num_steps(max(1, examples // len(exchange.clients)))
    if local.weight_decay and steps is not None:
        model = exchange.broadcast.model
        decay = _decayed(local, steps)
        weight = weight + decay * model.get_parameter(layer.weight).detach().to(weight)
        if layer.bias is not None:
            bias = bias + decay * model.get_parameter(layer.bias).detach().to(bias)
    scale = -1.0 / (local.lr * steps) if steps else None
    return LayerGradient(weight, bias, scale=scale, steps=steps, precision=precision)


def _decayed(local: LocalTraining, steps: int) -> float:
    """The share of the received weights that weight decay takes away in so many steps of SGD.

    Each step is linear in the weights and the gradients, so it is what one weight of 1 loses without any.
    """
    weight, velocity = 1.0, 0.0
    for _ in range(steps):
        velocity = local.momentum * velocity + local.weight_decay * weight
        weight -= local.lr * velocity
    return 1.0 - weight


def one_step_gradient(exchange: Exchange, known: Knowledge) -> dict[str, Tensor]:
    """The gradient in float64 by parameter name: -delta / lr for one local step, less the weight decay.

    An unknown learning rate leaves a common factor: for attacks whose equations are linear in the gradient.
    """
    update, local = exchange.update, known.local
    tensors = {name: t.detach().double() for name, t in update.tensors.items()}
    if update.kind is UpdateKind.GRADIENT:
        return tensors
    if local is None:
        return {name: -t for name, t in tensors.items()}
    if local.num_steps(1) != 1:
        raise NotApplicable(
            f"the update sums {local.num_steps(1)} local steps, between which the weights moved, so no "
            "layer's equations hold: attack a client that makes one step, or use 'inverting_gradients'."
        )
    model = exchange.broadcast.model
    return {
        name: -t / local.lr - local.weight_decay * model.get_parameter(name).detach().double()
        for name, t in tensors.items()
    }
