"""Clipping by example in plain dense networks, without ever forming one example's gradient.

In a linear layer the gradient of example i is the outer product of its backward signal and its input, so the
norm is the product of theirs (Goodfellow 2015), and the clipped sum is one matrix product (ghost clipping, Li
et al. 2022). For a network of 12 million weights and 20 examples that saves a gigabyte and most of the time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.core.types import Batch
from seepage.models.hooks import hooked
from seepage.models.zoo.filters import FixedFilters
from seepage.protocol.local import forward_loss

Tensors = dict[str, Tensor]

EXAMPLE_BY_EXAMPLE = (
    nn.Flatten,
    nn.Identity,
    nn.Linear,
    nn.ReLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.GELU,
    nn.Softplus,
    nn.Sigmoid,
    nn.Tanh,
)
"""Layers that cannot mix the examples of a batch, which would break the bound on one example's influence."""


@dataclass
class _Seen:
    entered: Tensor
    left: Tensor


def is_plain_dense(model: nn.Module) -> bool:
    """Whether `dense_clipped_sum` holds: a chain of known layers that begins by flattening,
    perhaps what fixed filters give.

    >>> is_plain_dense(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    True
    >>> is_plain_dense(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
    False
    """
    if type(model) is not nn.Sequential or len(model) == 0:
        return False
    layers = list(model)
    layers = layers[type(layers[0]) is FixedFilters :]
    applied_once = len({id(layer) for layer in layers}) == len(layers)
    # pruning, the older weight norm: what clients train is not the weight that the layer is applied with
    own = [name.rpartition(".")[2] for name, _ in model.named_parameters(remove_duplicate=False)]
    plain_weights = set(own) <= {"weight", "bias"} and len(own) == len(list(model.parameters()))
    default_flatten = all(
        (layer.start_dim, layer.end_dim) == (1, -1) for layer in layers if isinstance(layer, nn.Flatten)
    )
    return (
        applied_once
        and plain_weights
        and default_flatten
        and any(type(layer) is nn.Flatten for layer in layers[:1])
        and all(type(layer) in EXAMPLE_BY_EXAMPLE for layer in layers)
    )


def dense_clipped_sum(
    model: nn.Module, parameters: Tensors, buffers: Tensors, batch: Batch, loss: str, *, clip: float
) -> Tensors:
    """The sum over the examples of g_i / max(1, ||g_i|| / clip), for a model that `is_plain_dense`.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(3, 2))
    >>> batch = Batch(torch.rand(4, 3), torch.tensor([0, 1, 1, 0]))
    >>> found = dense_clipped_sum(model, dict(model.named_parameters()), {}, batch, "auto", clip=1e-3)
    >>> sum(float(g.norm()) ** 2 for g in found.values()) ** 0.5 <= 4e-3
    True
    """
    seen: dict[str, _Seen] = {}

    def watch(name: str, _layer: nn.Module, given: tuple[Tensor, ...], left: Tensor) -> None:
        if left.requires_grad:  # else a frozen layer with nothing trainable before it
            seen[name] = _Seen(given[0].detach(), left)

    wanted = {name: p.detach().requires_grad_() for name, p in parameters.items()}
    layers = {name: layer for name, layer in model.named_children() if isinstance(layer, nn.Linear)}
    with hooked(layers, after=watch), torch.enable_grad():
        value = forward_loss(model, {**wanted, **buffers}, batch, loss)
        signals = torch.autograd.grad(value, [s.left for s in seen.values()], allow_unused=True)
    # The loss of one example alone is not divided by the size of the batch.
    own = 1 if loss == "cross_entropy_sum" else len(batch)
    backward = {
        name: torch.zeros_like(s.left) if signal is None else own * signal
        for (name, s), signal in zip(seen.items(), signals, strict=True)
    }
    squares = torch.zeros(len(batch), device=batch.labels.device, dtype=value.dtype)
    for name, signal in backward.items():
        inputs = seen[name].entered.square().sum(dim=1) if f"{name}.weight" in parameters else 0.0
        bias = 1.0 if f"{name}.bias" in parameters else 0.0
        squares = squares + signal.square().sum(dim=1) * (inputs + bias)
    factors = (clip / squares.sqrt()).clamp(max=1.0)  # an all-zero gradient: clip / 0 = inf, clamped to 1
    return {name: _summed(name, backward, seen, factors) for name in parameters}


def _summed(name: str, backward: Tensors, seen: dict[str, _Seen], factors: Tensor) -> Tensor:
    layer, _, kind = name.rpartition(".")
    scaled = backward[layer] * factors.unsqueeze(1)
    return scaled.sum(dim=0) if kind == "bias" else scaled.T @ seen[layer].entered
