"""A crafted model on its way to the clients: weights only. What runs at a client is the audit's own code."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from seepage.attacks.traps.imprint import ImprintedModel
from seepage.core.errors import AttackError

_INSERTED = ("size", "bins", "channels", "kernels")


def described(crafted: nn.Module, honest: nn.Module) -> dict[str, Any]:
    """The weights, whether they are the honest ones, and the one change of architecture that is known."""
    if crafted is honest:
        return {"honest": True}
    inserted = None
    if isinstance(crafted, ImprintedModel):
        inserted = {name: getattr(crafted, name) for name in _INSERTED}
    return {"honest": False, "weights": dict(crafted.state_dict()), "inserted": inserted}


def rebuilt(description: Mapping[str, Any], honest: nn.Module) -> nn.Module:
    """The crafted model as a client receives it: the agreed architecture with other weights."""
    if description.get("honest"):
        return honest
    model: nn.Module = copy.deepcopy(honest)
    inserted = description.get("inserted")
    if inserted is not None:
        model = ImprintedModel(model, **{name: int(inserted[name]) for name in _INSERTED})
    weights = description.get("weights")
    own = model.state_dict()
    if not isinstance(weights, dict) or set(weights) != set(own):
        raise AttackError(
            "the attack sends a model of another architecture than the clients agreed to: craft the weights "
            "of a copy of the given model."
        )
    for name, tensor in weights.items():
        if not isinstance(tensor, Tensor) or tensor.shape != own[name].shape:
            raise AttackError(
                f"the attack's '{name}' has not the shape {tuple(own[name].shape)} of the model's: craft the "
                "weights of a copy of the given model."
            )
    with torch.no_grad():
        model.load_state_dict(weights)
    return model
