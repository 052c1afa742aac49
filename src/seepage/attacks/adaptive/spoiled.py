"""Where not to read: dense layers whose gradient a defense keeps back or empties."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from seepage.attacks.adaptive.restore import Settings
from seepage.models.layers import LinearLayer

Spoiled = Callable[[Sequence[LinearLayer], Settings], set[str]]
"""Names of the layers that say nothing, of all dense layers in the order of execution."""


def none_spoiled(layers: Sequence[LinearLayer], settings: Settings) -> set[str]:
    return set()


def defended_layer(layers: Sequence[LinearLayer], settings: Settings) -> set[str]:
    """Soteria: the named layer, or the first that sees each example once."""
    named = settings.get("layer")
    if named is not None:
        return {str(named)}
    return {layer.name for layer in layers if layer.per_example and layer.index == 0}


def kept_back(layers: Sequence[LinearLayer], settings: Settings) -> set[str]:
    """Shared layers: all that are not named; by default the first layer that runs, where it is dense."""
    only = settings.get("only")
    if only is not None:
        names = [str(name) for name in only]
        return {
            layer.name
            for layer in layers
            if not any(layer.weight == name or layer.weight.startswith(f"{name}.") for name in names)
        }
    return {layer.name for layer in layers if layer.index == 0 and layer.reads == "input"}


def next_best(layers: Sequence[LinearLayer], spoiled: set[str]) -> str | None:
    """The first layer that can still be read; None where the usual choice is as good, or nothing is left.

    >>> next_best([], {"fc"}) is None
    True
    """
    if not spoiled:
        return None
    readable = (layer for layer in layers if layer.bias is not None and layer.per_example)
    return next((layer.name for layer in readable if layer.name not in spoiled), None)
