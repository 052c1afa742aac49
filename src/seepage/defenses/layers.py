"""Which layers a model runs, in the order in which it runs them: names and registration do not say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.models.hooks import hooked
from seepage.protocol import training_mode


@dataclass(frozen=True)
class Executed:
    """One layer at its first call."""

    name: str
    module: nn.Module
    input: Tensor | None
    """Its first argument, with its graph if gradients were on."""


def executed(model: nn.Module, inputs: Tensor, wanted: Callable[[nn.Module], bool]) -> list[Executed]:
    """The wanted modules that one forward pass (eval mode) reaches, each at its first call.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> [e.name for e in executed(model, torch.rand(1, 2), lambda m: isinstance(m, nn.Linear))]
    ['0', '2']
    """
    calls: dict[str, Executed] = {}

    def record(name: str, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        calls.setdefault(name, Executed(name, module, args[0] if args else None))

    modules = {name: module for name, module in model.named_modules() if wanted(module)}
    with hooked(modules, before=record), training_mode(model, False):
        model(inputs)
    return list(calls.values())


def parameter_names(model: nn.Module) -> dict[int, str]:
    """id of a parameter to the name an update holds it under: the first one, if it is shared."""
    return {id(parameter): name for name, parameter in model.named_parameters()}


def first_executed(
    model: nn.Module, batch_inputs: Tensor, wanted: Callable[[nn.Module], bool]
) -> list[Executed]:
    """The same from a single example and without a graph: enough where only the order matters."""
    with torch.no_grad():
        return executed(model, batch_inputs[:1], wanted)
