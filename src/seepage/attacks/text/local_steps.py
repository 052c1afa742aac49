"""Several local steps: the difference of the weights is a sum of gradients at models along a way.

But for second orders it is the number of steps times the gradient of the model halfway.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from seepage.core.types import Batch, Broadcast, Exchange, Knowledge, LocalTraining, Update, UpdateKind
from seepage.protocol import local_update
from seepage.protocol.copies import own_copy


def several_steps(update: Update, local: LocalTraining | None) -> bool:
    """It is known that the update is more than one step's gradient times a factor."""
    if update.kind is UpdateKind.GRADIENT or local is None:
        return False
    return local.num_steps(update.num_examples or 1) != 1


def along(model: nn.Module, tensors: Mapping[str, Tensor], share: float) -> nn.Module:
    """A copy this share of the way to the weights that came back."""
    moved = own_copy(model)
    with torch.no_grad():
        for name, tensor in tensors.items():
            moved.get_parameter(name).add_(tensor, alpha=share)
    return moved


def mean_gradient(
    exchange: Exchange, known: Knowledge, guess: Batch | None = None
) -> tuple[nn.Module, Mapping[str, Tensor]] | None:
    """The gradient by name and the model that it is one of; None where the rate is not known.

    guess: what the batch may be. Training on it shows the second orders, which are then taken away: the
    gradient is that of the guess and what its update lacks.
    """
    update, local, model = exchange.update, known.local, exchange.broadcast.model
    if update.kind is UpdateKind.GRADIENT:
        return model, update.tensors
    if local is None or local.weight_decay:
        return None
    steps = local.num_steps(update.num_examples or 1)
    # with momentum m the gradient of a step acts in all later ones
    acting = sum((1 - local.momentum ** (steps - t)) / (1 - local.momentum) for t in range(steps))
    rate = -local.lr * acting
    if steps == 1:
        return model, {name: tensor / rate for name, tensor in update.tensors.items()}
    model = along(model, update.tensors, (steps - 1) / (2 * steps))
    if guess is None:
        return model, {name: tensor / rate for name, tensor in update.tensors.items()}
    again = local_update(exchange.broadcast, guess, replace(local, loss=known.loss)).tensors
    there = local_update(Broadcast(model), guess, LocalTraining(loss=known.loss)).tensors
    return model, {name: there[name] + (t - again[name]) / rate for name, t in update.tensors.items()}
