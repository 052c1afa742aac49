"""Kernels and a trapped layer before a model that has none of its own (LOKI with `insert`)."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import torch
from torch import nn

from seepage.attacks.traps.imprint import LAYER, ImprintedModel, set_return
from seepage.attacks.traps.routes import Route
from seepage.attacks.traps.traps import size_of_weights
from seepage.core.errors import NotApplicable
from seepage.core.types import Exchange, Knowledge


def inserted(model: nn.Module, known: Knowledge, groups: int, bins: int) -> tuple[nn.Module, str]:
    """The model behind kernels for so many groups and a dense layer, and the name of that layer."""
    shape = known.input.shape
    if len(shape) != 3:
        raise NotApplicable(
            f"inserted kernels read pictures, and an example here has the shape {shape}: use imprint."
        )
    wrapped = ImprintedModel(
        copy.deepcopy(model),
        size=math.prod(shape),
        bins=bins,
        channels=shape[0],
        kernels=groups * (shape[0] + 1),
    )
    generator = torch.Generator().manual_seed(known.seed)
    set_return(wrapped, size_of_weights(known), generator=generator)
    return wrapped, LAYER


def without_kernels(exchange: Exchange, route: Route) -> Exchange:
    """The same exchange with a model whose inserted layer reads the input itself.

    Behind kernels it reads f = gain * x + offset, so W f + b = (W gain) x + (b + W offset). Readers compute
    what examples send from what the layer reads; the rest of an imprinted model reads the input as well.
    """
    sent = exchange.broadcast.model
    assert isinstance(sent, ImprintedModel)
    plain = ImprintedModel(sent.model, size=sent.size, bins=sent.bins)
    weight, bias = (sent.get_parameter(f"{LAYER}.{part}").detach() for part in ("weight", "bias"))
    with torch.no_grad():
        plain.inserted_imprint.weight.copy_(weight[:, route.where] * route.gain)
        plain.inserted_imprint.bias.copy_(bias + weight[:, route.where] @ route.offset)
        plain.inserted_return.weight.copy_(sent.inserted_return.weight)
    plain.inserted_return.requires_grad_(False)
    tensors = exchange.update.tensors
    moved = tensors[f"{LAYER}.weight"][:, route.where], tensors[f"{LAYER}.bias"]
    own = {
        f"{LAYER}.weight": (moved[0] - moved[1].unsqueeze(1) * route.offset) / route.gain,
        f"{LAYER}.bias": moved[1],
    }
    return replace(
        exchange,
        broadcast=replace(exchange.broadcast, model=plain),
        update=replace(exchange.update, tensors=own),
    )
