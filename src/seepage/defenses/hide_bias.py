"""Hiding the bias gradient of the first dense layer, by which its rows are divided to read inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from seepage.core.errors import ModelError, SpecError
from seepage.core.registry import unknown
from seepage.core.types import Batch, Broadcast, Defense, LocalStep, Update
from seepage.defenses.layers import first_executed, parameter_names
from seepage.defenses.randomness import noise_generator


def hide_bias(
    *, how: Literal["zeros", "noise"] = "zeros", layer: str | None = None, seed: int | None = None
) -> Defense:
    """Client: send no bias gradient of the first dense layer, or noise of the same norm in its place.

    x = G_w / G_b (Boenisch et al. 2021, eq. 5) then lacks its denominator. Rows are still multiples of
    inputs: an attacker who knows the value range needs no bias.

    layer: another nn.Linear; by default the first one that runs and has a bias.
    """
    if how not in ("zeros", "noise"):
        raise ValueError(f"how must be 'zeros' or 'noise', not '{how}'")
    generator = noise_generator(seed)

    def hide(broadcast: Broadcast, batch: Batch, next_step: LocalStep) -> Update:
        name = _bias_name(broadcast.model, batch.inputs, layer)
        update = next_step(broadcast, batch)
        hidden = _replacement(update.tensors[name], how, generator)
        return replace(update, tensors={**update.tensors, name: hidden})

    return hide


def _replacement(bias: Tensor, how: str, generator: torch.Generator) -> Tensor:
    if how == "zeros":
        return torch.zeros_like(bias)
    noise = torch.randn(bias.shape, generator=generator, dtype=bias.dtype).to(bias.device)
    return noise.mul_(bias.norm() / noise.norm())


def _bias_name(model: nn.Module, inputs: Tensor, layer: str | None) -> str:
    """The bias that an update holds: of the named dense layer, or of the first that runs."""
    names = parameter_names(model)
    biased = {e.name: names[id(e.module.bias)] for e in first_executed(model, inputs, _has_trained_bias)}
    if not biased:
        raise ModelError("the model has no dense layer with a trained bias, so there is no bias to hide.")
    if layer is None:
        return next(iter(biased.values()))
    if layer not in biased:
        raise SpecError(unknown("dense layer with a bias", layer, biased))
    return biased[layer]


def _has_trained_bias(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) and module.bias is not None and module.bias.requires_grad
