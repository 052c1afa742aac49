"""Which layers of a received model the weight checks can read, and which they cannot.

A layer whose weights are stored flat, transposed, packed or under another name is invisible to them. Such a
model was not checked, and nothing about it may be called clean.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from seepage.guardian.detectors.layers import WeightLayer, heads, is_weight, of_kind, stored_as, weight_layers

LEAST_FAN_IN = 8
"""Inputs from which on a row is looked at. Derived: what the check that needs the fewest (`pass_through`)
asks for."""
_NO_LAYER = ("bias", "embed", "token", "position", "running_", "mask", "scale")
"""In the names of tensors with several dimensions that no layer multiplies by."""
_INDICES = (torch.int64, torch.bool)
"""Types of positions and masks; weights are packed into shorter integers."""


@dataclass(frozen=True)
class Coverage:
    """Names of layers, and the reason for each that no check could look at."""

    read: tuple[str, ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict)
    """Stored in a way that hides their rows: they may hold anything."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Layers that no check is about: embeddings, and those too small for a statistic."""

    @property
    def enough(self) -> bool:
        """At least one dense layer or convolution was looked at, and none was hidden."""
        return bool(self.read) and not self.unread

    @property
    def gap(self) -> str:
        """Why it is not enough, inside a sentence."""
        if self.unread:
            named = ", ".join(f"'{name}' {why}" for name, why in list(self.unread.items())[:3])
            more = f" and {len(self.unread) - 3} more" if len(self.unread) > 3 else ""
            layers = f"{len(self.unread)} layer{'s' if len(self.unread) > 1 else ''}"
            return f"{layers} could not be read ({named}{more})"
        return "there is no dense layer and no convolution that is large enough to be looked at"


def coverage(model: nn.Module) -> Coverage:
    """What the weight checks look at in this model.

    >>> coverage(nn.Sequential(nn.Linear(20, 10), nn.Linear(10, 3))).enough
    True
    >>> from seepage.guardian.detectors.layers import as_module
    >>> flat = as_module({"0.weight": torch.ones(200), "0.bias": torch.ones(10)})
    >>> coverage(flat).unread
    {'0.weight': 'is stored flat'}
    """
    layers = weight_layers(model)
    looked_at = [*of_kind(layers, "dense", "conv", fan_in=LEAST_FAN_IN), *heads(layers)]
    names = {layer.name for layer in looked_at}
    unread = dict(_unread(model.state_dict(), layers, stored_as(model).unsure))
    left_out = {
        layer.name: "is an embedding" if layer.kind == "embedding" else "is too small for a statistic"
        for layer in layers
        if layer.name not in names
    }
    hidden = {name.removesuffix(".weight") for name in unread}
    return Coverage(
        read=tuple(layer.name for layer in layers if layer.name in names - hidden),
        unread=unread,
        left_out=left_out,
    )


def _unread(
    state: Mapping[str, Any], layers: Sequence[WeightLayer], unsure: frozenset[str]
) -> Iterator[tuple[str, str]]:
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    yield from ((name, "is packed") for name, value in state.items() if _is_packed(name, value))
    longest = max((max(t.shape) for t in tensors.values() if t.dim() >= 2), default=0)
    chain = _transposed_chain(layers)
    for name, tensor in tensors.items():
        if tensor.numel() <= 1:
            continue
        named = is_weight(name)
        bias = tensors.get("bias".join(name.rsplit("weight", 1))) if named else None
        if not tensor.is_floating_point():
            if (named and tensor.dim() >= 2) or tensor.dtype not in _INDICES:
                yield name, f"is stored as {str(tensor.dtype).removeprefix('torch.')}"
        elif tensor.squeeze().dim() < 2 and (not named or tensor.dim() < 2):
            if named and _is_flat(tensor, bias, longest):
                yield name, "is stored flat"
        elif not named:
            if not any(part in name.lower() for part in _NO_LAYER):
                yield name, "is not called a weight"
        elif _is_transposed(tensor, bias) or name.removesuffix(".weight") in chain:
            yield name, "is stored transposed"
        elif name in unsure:
            yield name, "may be stored transposed, as others are"


def _is_packed(name: str, value: Any) -> bool:
    """What torch's quantised layers keep in place of a tensor."""
    return "packed" in name and not isinstance(value, Tensor | torch.dtype)


def _is_flat(tensor: Tensor, bias: Tensor | None, longest: int) -> bool:
    """No scale of a normalisation: those are as long as their bias, and no longer than a layer is wide."""
    if bias is not None and bias.dim() == 1 and len(bias):
        return len(tensor) > len(bias) and len(tensor) % len(bias) == 0
    return 0 < longest < len(tensor)


def _is_transposed(tensor: Tensor, bias: Tensor | None) -> bool:
    """A convolution whose bias shows that its outputs are last; dense ones are read so (`orientation`)."""
    if tensor.dim() == 2 or bias is None or bias.dim() != 1 or len(bias) == tensor.shape[0]:
        return False
    # A transposed convolution has its outputs second, as it should.
    return len(bias) == tensor.shape[-1] and len(bias) != tensor.shape[1]


def _transposed_chain(layers: Sequence[WeightLayer]) -> frozenset[str]:
    """Dense layers without biases that fit together only the other way round: inputs by outputs."""
    dense = [layer for layer in layers if layer.kind == "dense"]
    if len(dense) < 2 or len(dense) < len(layers) or any(layer.bias is not None for layer in dense):
        return frozenset()
    shapes = [tuple(layer.rows.shape) for layer in dense]
    pairs = list(itertools.pairwise(shapes))
    straight = any(one[0] == two[1] for one, two in pairs)
    turned = all(one[1] == two[0] for one, two in pairs)
    return frozenset(layer.name for layer in dense) if turned and not straight else frozenset()
