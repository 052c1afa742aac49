"""Copies of a model that hold its frozen part once: with adapters on a large base, nearly all of it."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from seepage.core.lazy import lazy_clone

Frozen = dict[int, nn.Parameter]
"""By `id` of a frozen parameter, what a copy of the model holds in its place."""


def frozen_of(model: nn.Module) -> Frozen:
    """Every plain parameter that clients do not train, in its own place."""
    return {
        id(p): p
        for p in model.parameters()
        if not p.requires_grad and type(p) is nn.Parameter and p.layout is torch.strided and not p.is_meta
    }


def beside(model: nn.Module) -> nn.Module:
    """A copy that holds the very same frozen parameters, for those who write to none of them.

    >>> model = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2))
    >>> other = beside(model)
    >>> other[0].weight is model[0].weight, other[1].weight is model[1].weight
    (True, False)
    """
    return copy.deepcopy(model, dict(frozen_of(model)))


def own_copy(model: nn.Module, *, frozen: Frozen | None = None) -> nn.Module:
    """A copy to write to, also of a module that keeps tensors of its last run (pruning, older weight norm).

    Frozen parameters take memory once they are written to (`lazy_clone`). frozen: those of an earlier copy of
    a model that holds the same ones, added to here, so that all rounds of a training share them.

    >>> model = nn.Linear(2, 2).requires_grad_(False)
    >>> other = own_copy(model)
    >>> _ = nn.init.ones_(other.weight)
    >>> torch.equal(model.weight, other.weight)
    False
    """
    held = {} if frozen is None else frozen
    for key, parameter in frozen_of(model).items():
        if key not in held:
            held[key] = nn.Parameter(lazy_clone(parameter), requires_grad=False)
    kept = {id(t): t.detach().clone() for module in model.modules() for t in computed(module).values()}
    return copy.deepcopy(model, {**held, **kept})


def computed(module: nn.Module) -> dict[str, Tensor]:
    """Tensors that a module keeps of a run, and that are tied to it: deepcopy refuses those."""
    return {n: t for n, t in vars(module).items() if isinstance(t, Tensor) and not t.is_leaf}
