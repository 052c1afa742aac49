"""The state of a pass-through on its way: where each input value is, scaled and shifted by how much."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.attacks.traps.routes import Route
from seepage.core.types import InputSpec
from seepage.protocol.widening import model_placement

GAINS = (0.5, 2.0)
"""Hidden pass-throughs draw their gains from this range, evenly in the logarithm. Derived: at most one binary
digit is lost either way."""


@dataclass(frozen=True)
class Carried:
    """feature[where[j]] = gain[j] * input[j] + offset[j] in a feature tensor of this shape."""

    shape: tuple[int, ...]
    where: Tensor
    """(d,) places in the flattened features, all different."""
    gain: Tensor
    offset: Tensor
    low: Tensor
    high: Tensor
    """(d,) bounds of the *input* values, in model units."""
    silent: Tensor
    """(m,) bool: features that are zero whatever the input."""
    negative: Tensor
    """(m,) bool: features that are never positive, so that the next ReLU makes them silent."""
    non_negative: bool
    """All features have passed a ReLU (or cannot be negative from the start)."""

    @property
    def least(self) -> Tensor:
        return self.gain * self.low + self.offset

    @property
    def most(self) -> Tensor:
        return self.gain * self.high + self.offset

    @property
    def holds_data(self) -> Tensor:
        """(m,) bool."""
        held = torch.zeros(math.prod(self.shape), dtype=torch.bool, device=self.where.device)
        held[self.where] = True
        return held

    def route(self) -> Route:
        return Route(where=self.where, gain=self.gain, offset=self.offset)


Bounds = tuple[float | Tensor, float | Tensor]
"""Lowest and highest raw value: of all, or of each."""


def at_the_input(spec: InputSpec, bounds: Bounds, like: nn.Module) -> Carried:
    """Before the first layer: every value in its own place, unchanged."""
    device, dtype = model_placement(like)
    size = math.prod(spec.shape)
    low, high = (
        spec.to_model(torch.as_tensor(edge, device=device, dtype=dtype).expand(1, *spec.shape)).flatten()
        for edge in bounds
    )
    return Carried(
        shape=spec.shape,
        where=torch.arange(size, device=device),
        gain=torch.ones(size, device=device, dtype=dtype),
        offset=torch.zeros(size, device=device, dtype=dtype),
        low=low,
        high=high,
        silent=torch.zeros(size, dtype=torch.bool, device=device),
        negative=torch.zeros(size, dtype=torch.bool, device=device),
        non_negative=bool((low >= 0).all()),
    )


@dataclass(frozen=True)
class Hiding:
    """Appendix B's measures: with `on`, places are permuted, gains random and unused weights random."""

    on: bool
    generator: torch.Generator

    def order(self, size: int, like: Tensor) -> Tensor:
        """Which of `size` places are used first: shuffled (measure 1) or as they lie."""
        order = torch.randperm(size, generator=self.generator) if self.on else torch.arange(size)
        return order.to(like.device)

    def gains(self, size: int, like: Tensor) -> Tensor:
        """Random positive factors (measure 2), or ones."""
        if not self.on:
            return torch.ones(size, device=like.device, dtype=like.dtype)
        low, high = (math.log(edge) for edge in GAINS)
        return (low + (high - low) * torch.rand(size, generator=self.generator)).exp().to(like)

    def noise(self, shape: tuple[int, ...], std: float, like: Tensor) -> Tensor:
        return (std * torch.randn(shape, generator=self.generator)).to(like)

    def uniform(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        return torch.rand(shape, generator=self.generator).to(like)
