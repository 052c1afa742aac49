"""What lies between two linear layers, where it acts on each neuron by itself.

An activation, dropout and batch norm (in eval mode) do; layer norm and skip connections do not. It is seen
from behaviour, so functional activations count too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.core.types import InputSpec
from seepage.models.hooks import front_of, hooked, leaves_run
from seepage.models.layers import LinearLayer, trace_linear_layers
from seepage.models.probes import PROBE_EXAMPLES, dummy_inputs
from seepage.models.remembered import remembered
from seepage.protocol import training_mode

Elementwise = Callable[[Tensor], Tensor]
"""From a layer's outputs (t, N) to what the next one reads (t, N), in double precision."""
_SAME = 1e-4
"""Relative difference up to which double and single precision computed the same. Derived: a thousand times
float32's rounding, a thousandth of what another function makes."""


@dataclass(frozen=True)
class Between:
    """The next linear layer, and what its input is made by."""

    next: LinearLayer
    apply: Elementwise

    def with_slopes(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """What the next layer reads (t, N), and its derivative by the output of each neuron (t, N)."""
        with torch.enable_grad():
            at = outputs.detach().requires_grad_()
            read = self.apply(at)
            (slopes,) = torch.autograd.grad(read.sum(), at)
        return read.detach(), slopes


def next_linear(model: nn.Module, layer: LinearLayer, spec: InputSpec) -> Between | None:
    """The first linear layer whose every input is a function of one output of `layer`; None: there is none.

    >>> from seepage.core.types import Modality
    >>> spec = InputSpec(modality=Modality.TABULAR, shape=(3,), num_classes=2)
    >>> model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    >>> between = next_linear(model, trace_linear_layers(model, spec)[0], spec)
    >>> between.next.name, round(between.apply(torch.ones(1, 5).double())[0, 0].item(), 4)  # tanh(1)
    ('2', 0.7616)
    """
    return remembered(model, ("between", layer.name, spec.shape), lambda: _find(model, layer, spec))


def _find(model: nn.Module, layer: LinearLayer, spec: InputSpec) -> Between | None:
    for later in trace_linear_layers(model, spec):
        fits = later.index > layer.index and later.in_features == layer.out_features
        if not (fits and later.per_example and later.trained):
            continue
        for apply in (_modules(model, layer, later, spec), _whole(model, layer, later, spec)):
            if apply is not None and _elementwise(apply, layer.out_features, model):
                return Between(later, apply)
    return None


def _seen(model: nn.Module, layer: LinearLayer, later: LinearLayer, spec: InputSpec) -> tuple[Tensor, Tensor]:
    """What leaves `layer` and what enters `later` on made-up inputs, both flattened."""
    outputs: list[Tensor] = []
    module = {"": model.get_submodule(layer.name)}

    def look(_name: str, _module: nn.Module, _args: object, output: Tensor) -> None:
        outputs.append(output.clone())

    with torch.no_grad(), training_mode(model, False), hooked(module, after=look):
        read = front_of(model, later.name)(dummy_inputs(spec, PROBE_EXAMPLES, like=model))
    return outputs[0].flatten(1), read


def _modules(model: nn.Module, layer: LinearLayer, later: LinearLayer, spec: InputSpec) -> Elementwise | None:
    """The modules that run between the two, without the rest of the model; None where they are not all."""
    with leaves_run(model) as ran:
        outputs, read = _seen(model, layer, later, spec)
    first = [module for _, module in ran].index(model.get_submodule(layer.name))
    chain = [copy.deepcopy(module).double().eval().requires_grad_(False) for _, module in ran[first + 1 :]]

    def apply(at: Tensor) -> Tensor:
        for module in chain:
            at = module(at.clone())  # an in-place activation may not change what was given
        return at

    if any(isinstance(module, nn.Linear) for module in chain):
        return None
    return apply if _agrees(apply(outputs.double()), read) else None


def _whole(model: nn.Module, layer: LinearLayer, later: LinearLayer, spec: InputSpec) -> Elementwise | None:
    """The whole model, run with the layer's outputs put in: slow, and right for functional activations."""
    double = copy.deepcopy(model).double().eval().requires_grad_(False)
    front, module = front_of(double, later.name), double.get_submodule(layer.name)

    def apply(at: Tensor, seed: int = 0) -> Tensor:
        if len(at) == 0:  # attention cannot be run on no text
            return at
        with hooked({"": module}, after=lambda *_: at.clone()):
            return front(dummy_inputs(spec, len(at), like=double, seed=seed))

    outputs, read = _seen(model, layer, later, spec)
    # With another input as well: what passes the layer by would show.
    agree = all(_agrees(apply(outputs.double(), seed), read) for seed in (0, 1))
    return apply if agree else None


def _agrees(ours: Tensor, read: Tensor) -> bool:
    if ours.shape != read.shape:
        return False
    apart = (ours - read.double()).norm()
    return bool(apart <= _SAME * read.double().norm())


def _elementwise(apply: Elementwise, width: int, model: nn.Module) -> bool:
    """Whether changing some neurons changes what is read of those, and of no others."""
    generator = torch.Generator().manual_seed(0)
    device = next(model.parameters()).device

    def normal() -> Tensor:
        return torch.randn(PROBE_EXAMPLES, width, generator=generator, dtype=torch.float64).to(device)

    before, after = normal(), normal()
    changed = (torch.rand(width, generator=generator) < 0.5).to(device)
    read, again = (apply(at) for at in (before, torch.where(changed, after, before)))
    if read.shape != before.shape:
        return False
    return bool((read == again)[:, ~changed].all()) and bool((read != again)[:, changed].any())
