"""The random initialisations of Boenisch et al., Table 2, as Keras draws them.

Their experiments ran in TensorFlow 2.4, so its definitions count: biases are zero, and an Embedding
keeps its own initialisation (Keras: U(-0.05, 0.05), which our text models draw when they are built),
because a kernel initialiser is an argument of the dense and convolutional layers only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.core.errors import ModelError
from seepage.core.registry import unknown

KERAS_TRUNCATION_FACTOR = 0.87962566103423978
"""Derived: the standard deviation of a unit normal truncated at two; Keras divides by it, to get the wanted
one back."""

NORM_LAYERS = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)


@dataclass(frozen=True, kw_only=True)
class Initialiser:
    """`draw(weight, generator)` fills one weight in place; None keeps what the model was built with."""

    draw: Callable[[Tensor, torch.Generator], object] | None
    description: str


def _fans(weight: Tensor) -> tuple[int, int]:
    """(fan_in, fan_out) of a weight stored as (out, in, *kernel)."""
    receptive_field = math.prod(weight.shape[2:])
    return weight.shape[1] * receptive_field, weight.shape[0] * receptive_field


def xavier_normal(weight: Tensor, generator: torch.Generator) -> None:
    """Keras' GlorotNormal: variance 2 / (fan_in + fan_out), truncated at two standard deviations."""
    std = math.sqrt(2.0 / sum(_fans(weight))) / KERAS_TRUNCATION_FACTOR
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std, generator=generator)


def xavier_uniform(weight: Tensor, generator: torch.Generator) -> None:
    """Keras' GlorotUniform: U(-l, l) with l = sqrt(6 / (fan_in + fan_out))."""
    limit = math.sqrt(6.0 / sum(_fans(weight)))
    nn.init.uniform_(weight, -limit, limit, generator=generator)


def gaussian(std: float) -> Initialiser:
    """Keras' RandomNormal, which is not truncated."""

    def draw(weight: Tensor, generator: torch.Generator) -> None:
        nn.init.normal_(weight, std=std, generator=generator)

    return Initialiser(draw=draw, description=f"N(0, {std:g}²)")


INITIALISERS: dict[str, Initialiser] = {
    "default": Initialiser(
        draw=None, description="what the model's builder drew (torch's own unless it says so)"
    ),
    "xavier_normal": Initialiser(draw=xavier_normal, description="Glorot normal, truncated as in Keras"),
    "xavier_uniform": Initialiser(draw=xavier_uniform, description="Glorot uniform"),
    "gaussian_0.01": gaussian(0.01),
    "gaussian_0.1": gaussian(0.1),
    "gaussian_0.5": gaussian(0.5),
    "gaussian_1": gaussian(1.0),
    "gaussian_2": gaussian(2.0),
}
"""Paper: Boenisch et al. 2021, Table 2."""


@torch.no_grad()
def initialise(model: nn.Module, name: str, *, generator_seed: int) -> nn.Module:
    """Redraw, in place, every weight of two or more dimensions and set every bias to zero.

    Norm layers and embeddings are left alone. The global random state is neither read nor moved, and
    the draws are made on the CPU, so that a seed means the same weights on every device.

    >>> model = initialise(nn.Linear(3, 2), "gaussian_0.1", generator_seed=0)
    >>> model.bias.tolist()
    [0.0, 0.0]
    """
    if name not in INITIALISERS:
        raise ModelError(unknown("initialiser", name, INITIALISERS))
    draw = INITIALISERS[name].draw
    if draw is None:
        return model
    generator = torch.Generator().manual_seed(generator_seed)
    for module in model.modules():
        if isinstance(module, (*NORM_LAYERS, nn.Embedding, nn.EmbeddingBag)):
            continue
        for parameter_name, parameter in module.named_parameters(recurse=False):
            if "bias" in parameter_name:
                parameter.zero_()
            elif parameter.dim() >= 2:
                drawn = torch.empty(parameter.shape)
                draw(drawn, generator)
                parameter.copy_(drawn)
    return model
