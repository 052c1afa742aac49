"""Which of a model's linear layers an attack can read, and why it cannot read the others."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from seepage.core.errors import NotApplicable
from seepage.core.registry import unknown
from seepage.core.types import InputSpec
from seepage.models.layers import LinearLayer, trace_linear_layers


def unreadable(layer: LinearLayer) -> str:
    """Why no row of the layer's gradient shows an example; empty where one may."""
    if layer.bias is None:
        return "has no bias, so nothing says by what to divide its rows"
    if not layer.per_example:
        return "is applied at several positions of one example, whose gradients are summed"
    if not layer.trained:
        return "is frozen, so clients send no gradient of it"
    return ""


def named_layer(layers: Sequence[LinearLayer], name: str) -> LinearLayer:
    """The layer of that name, or NotApplicable with the nearest one."""
    for layer in layers:
        if layer.name == name:
            return layer
    raise NotApplicable(unknown("linear layer", name, [layer.name for layer in layers]))


def why_not(layers: Sequence[LinearLayer], reasons: Sequence[str], *, otherwise: str) -> str:
    """The first two reasons, each with its layer's name."""
    listed = [f"'{layer.name}' {why}" for layer, why in zip(layers, reasons, strict=True)]
    return "; ".join(listed[:2]) or otherwise


def choose_layer(model: nn.Module, spec: InputSpec, name: str | None) -> LinearLayer:
    """The layer to read: the first of `layers_to_read`.

    >>> from seepage.core.types import Modality
    >>> spec = InputSpec(modality=Modality.TABULAR, shape=(4,), num_classes=2)
    >>> choose_layer(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)), spec, None).name
    '0'
    """
    return layers_to_read(model, spec, name)[0]


def layers_to_read(model: nn.Module, spec: InputSpec, name: str | None) -> list[LinearLayer]:
    """The named layer, else all that read the model's input, else the first one.

    Where branches read the input beside each other (wide and deep, experts), one may show what another does
    not; those with a ReLU behind, which leaves neurons to single examples, come first.

    Raises NotApplicable with the reason where none can be read.
    """
    layers = trace_linear_layers(model, spec)
    if name is not None:
        named = named_layer(layers, name)
        if why := unreadable(named):
            raise NotApplicable(f"layer '{name}' {why}: name another layer, or none to have one chosen.")
        return [named]
    suitable = [layer for layer in layers if not unreadable(layer)]
    if not suitable:
        first = next((type(m).__name__ for m in model.modules() if not list(m.children())), "nothing")
        reasons = why_not(layers, [unreadable(layer) for layer in layers], otherwise="none at all")
        raise NotApplicable(
            f"the model begins with {first} and has no linear layer to read ({reasons}): "
            "try an attack that optimises, or one that crafts weights."
        )
    if at_input := [layer for layer in suitable if layer.reads == "input"]:
        return sorted(at_input, key=lambda layer: (not layer.followed_by_relu, layer.index))
    return [min(suitable, key=lambda layer: (layer.reads == "features", layer.index))]
