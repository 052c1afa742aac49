"""One example out of a mixture that it dominates: what a dense layer's gradient has of rank one.

An example adds d x^T to a dense layer's weights and d to its biases, a matrix [d x^T, d] of rank one. Where
a fishing head lets some of all other examples through, the leading singular pair of the sum is still nearly
that of the example which outweighs them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from seepage.attacks.fishing.head import Head
from seepage.core.types import InputSpec
from seepage.models.layers import trace_linear_layers

_STEPS = 50
"""Of the power iteration. Derived: a pair that outweighs the next twofold is found to 2^-100."""


def purified(
    tensors: Mapping[str, Tensor], model: nn.Module, spec: InputSpec, head: Head
) -> dict[str, Tensor]:
    """The gradients with every dense layer that reads each example once (but the head) made rank one."""
    found = dict(tensors)
    for layer in trace_linear_layers(model, spec):
        if layer.name == head.name or not layer.per_example or layer.weight not in found:
            continue
        if layer.bias is None or layer.bias not in found:
            continue
        joined = torch.cat([found[layer.weight], found[layer.bias].unsqueeze(1)], dim=1)  # (N, d + 1)
        pure = leading_pair(joined)
        if layer.reads == "input":
            pure = _possible(pure, spec)
        found[layer.weight], found[layer.bias] = pure[:, :-1].contiguous(), pure[:, -1].clone()
    return found


def _possible(pure: Tensor, spec: InputSpec) -> Tensor:
    """The same pair with what was read moved to the nearest values that an input can have."""
    size = pure[:, -1:].abs().amax()
    if spec.value_range is None or pure.shape[1] - 1 != math.prod(spec.shape) or size == 0:
        return pure
    low, high = (spec.to_model(torch.full(spec.shape, edge)).flatten().to(pure) for edge in spec.value_range)
    row = int(pure[:, -1].abs().argmax())
    read = (pure[row, :-1] / pure[row, -1]).clamp(low, high)
    return pure[:, -1:] * torch.cat([read, torch.ones_like(read[:1])])


def leading_pair(matrix: Tensor) -> Tensor:
    """The nearest matrix of rank one, by power iteration from the last column.

    >>> one, two = torch.tensor([[3.0, 4.0]]), torch.tensor([[4.0, -3.0]])
    >>> torch.allclose(leading_pair(9 * one.T @ one + two.T @ two), 9 * one.T @ one, atol=1e-4)
    True
    """
    wide = matrix.double()
    left = wide[:, -1]
    for _ in range(_STEPS):
        right = wide.T @ left
        left = wide @ (right / right.norm().clamp_min(1e-300))
        left = left / left.norm().clamp_min(1e-300)
    return torch.outer(left, wide.T @ left).to(matrix)
