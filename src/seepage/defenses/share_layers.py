"""Keeping some layers at home: only the others' updates are sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from seepage.core.errors import SpecError
from seepage.core.registry import unknown
from seepage.core.types import Batch, Broadcast, Defense, LocalStep, Update
from seepage.defenses.layers import first_executed, parameter_names


def share_layers(*, only: Sequence[str] | None = None) -> Defense:
    """Client: send the update of some layers only; zeros stand for the others, which nobody sees.

    only: names of modules or parameters; by default all but the first layer that runs, whose gradient shows
    inputs most directly. What is kept back is not trained by the federation.
    """
    if only is not None and (isinstance(only, str) or not only):
        raise ValueError("only must be a list of at least one layer to share, such as ['fc2']")

    def send_some(broadcast: Broadcast, batch: Batch, next_step: LocalStep) -> Update:
        update = next_step(broadcast, batch)
        model = broadcast.model
        shared = _all_but_first(model, batch.inputs) if only is None else _named(model, only)
        tensors = {name: t if name in shared else torch.zeros_like(t) for name, t in update.tensors.items()}
        return replace(update, tensors=tensors)

    return send_some


def _named(model: nn.Module, only: Sequence[str]) -> set[str]:
    names = [name for name, _ in model.named_parameters()]
    shared: set[str] = set()
    for wanted in only:
        inside = {name for name in names if name == wanted or name.startswith(f"{wanted}.")}
        if not inside:
            modules = [name for name, m in model.named_modules() if name and list(m.parameters())]
            raise SpecError(unknown("layer to share", wanted, modules))
        shared |= inside
    return shared


def _all_but_first(model: nn.Module, inputs: Tensor) -> set[str]:
    names = parameter_names(model)
    ran = first_executed(model, inputs, lambda m: bool(list(m.parameters(recurse=False))))
    kept_back = {names[id(p)] for p in ran[0].module.parameters(recurse=False)} if ran else set()
    return set(names.values()) - kept_back
