"""The way from a model's input to one of its layers, seen by running it: which modules, in which order.

A pass-through can only be crafted along a plain chain. Whether there is one is decided by behaviour: each
module must be given exactly what the module before it put out, through a ReLU at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from seepage.core.errors import NotApplicable
from seepage.core.types import InputSpec
from seepage.models.hooks import hooked
from seepage.models.probes import PROBE_EXAMPLES, dummy_inputs, run_model, same_values
from seepage.protocol import training_mode


@dataclass(frozen=True)
class Step:
    """One module on the way. A ReLU that is a function and not a module has no name."""

    name: str
    module: nn.Module
    out_shape: tuple[int, ...]
    """Without the batch dimension."""


@dataclass(frozen=True)
class LeafCall:
    """One run of a module without children."""

    name: str
    module: nn.Module
    input: Tensor
    output: Tensor

    def step(self) -> Step:
        return Step(self.name, self.module, tuple(self.output.shape[1:]))


def path_to(model: nn.Module, spec: InputSpec, target: str) -> list[Step]:
    """The modules that an example passes before it reaches `target`, or NotApplicable with the reason.

    >>> from seepage.core.types import Modality
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    >>> spec = InputSpec(modality=Modality.IMAGE, shape=(1, 2, 2), num_classes=2)
    >>> [step.name for step in path_to(model, spec, "3")]
    ['0', '1', '2']
    """
    inputs = dummy_inputs(spec, PROBE_EXAMPLES, like=model)
    calls = leaf_calls(model, inputs)
    names = [call.name for call in calls]
    steps: list[Step] = []
    flowing, before = inputs, "the input"
    for call in calls[: names.index(target) + 1]:
        if not same_values(call.input, flowing):
            if not same_values(call.input, flowing.clamp_min(0)):
                raise NotApplicable(
                    f"what reaches '{call.name}' is not the output of {before} (a residual connection, a "
                    "reordering or a function in between), so the input cannot be passed through unaltered: "
                    "attack an earlier layer, or use an attack that optimises."
                )
            steps.append(Step("", nn.ReLU(), tuple(call.input.shape[1:])))
        if call.name != target:
            steps.append(call.step())
        flowing, before = call.output, f"'{call.name}'"
    return steps


def leaf_calls(model: nn.Module, inputs: Tensor) -> list[LeafCall]:
    """Every run of a leaf module that takes and returns a tensor, in the order in which they end."""
    calls: list[LeafCall] = []
    entered: dict[str, Tensor] = {}

    def remember(name: str, _module: nn.Module, args: tuple[Any, ...]) -> None:
        if args and isinstance(args[0], Tensor):  # cloned before an in-place module changes it
            entered[name] = args[0].detach().clone()

    def record(name: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if args and isinstance(args[0], Tensor) and isinstance(output, Tensor):
            calls.append(LeafCall(name, module, entered.pop(name), output.detach().clone()))

    leaves = {name: module for name, module in model.named_modules() if not list(module.children())}
    with torch.no_grad(), training_mode(model, False), hooked(leaves, before=remember, after=record):
        run_model(model, inputs)
    return calls
