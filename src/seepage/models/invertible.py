"""Features back to inputs, where the model itself says how: the server knows the model that it sent."""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from seepage.core.types import InputSpec, Modality
from seepage.models.hooks import layer_input
from seepage.models.layers import LinearLayer
from seepage.protocol import training_mode

AGREES = 1e-3
"""Largest relative difference between features and those of the inputs that they were turned into. Derived:
float32 through some dozens of layers leaves 1e-5, and features of another input differ by their own size."""


@runtime_checkable
class Reversible(Protocol):
    """A model whose features determine its input, and that can compute it."""

    def features_to_input(self, features: Tensor, /) -> Tensor:
        """(k, m) inputs of a linear layer to (k, *shape) inputs of the model, in model units."""


def inputs_of(model: nn.Module, layer: LinearLayer, features: Tensor, spec: InputSpec) -> Tensor | None:
    """The inputs for which `layer` reads these features; None where the model cannot be run backwards.

    A model may have several linear layers, so the answer is put through the model: it must lead back to the
    features it was made from.
    """
    if not isinstance(model, Reversible) or spec.modality is Modality.TEXT:
        return None
    if layer.in_features != math.prod(spec.shape) or len(features) == 0:
        return None
    with torch.no_grad(), training_mode(model, False):
        inputs = model.features_to_input(features)
    if inputs.shape != (len(features), *spec.shape):
        return None
    again = layer_input(model, layer.name, inputs)
    return inputs if bool((again - features).norm() <= AGREES * features.norm()) else None
