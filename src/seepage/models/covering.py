"""Convolutions that cover their whole input, seen as the dense layers that they are.

A kernel as large as what it reads is applied once: sum_ijk w_nijk x_ijk + b_n. A classifier that is a 1 x 1
convolution behind global pooling is one, too. Which ones are is seen by running the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from seepage.core.types import Exchange, InputSpec
from seepage.models.hooks import hooked, modules_of
from seepage.models.probes import PROBE_EXAMPLES, dummy_inputs, run_model
from seepage.models.remembered import remembered
from seepage.protocol import training_mode
from seepage.protocol.copies import beside

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Dense:
    """A model without covering convolutions, and what those are called in it."""

    model: nn.Module
    renamed: Mapping[str, str]
    """From a convolution's name to that of the dense layer in its place."""

    def layer(self, name: str | None) -> str | None:
        """What a layer of the original is called here."""
        return None if name is None else self.renamed.get(name, name)

    def space(self, name: str) -> str:
        """What a layer of this model is called in the original."""
        return {inside: outside for outside, inside in self.renamed.items()}.get(name, name)

    def exchange(self, exchange: Exchange) -> Exchange:
        """The same exchange, as if it were about this model."""
        if not self.renamed:
            return exchange
        tensors = dict(self._held(name, tensor) for name, tensor in exchange.update.tensors.items())
        return replace(
            exchange,
            broadcast=replace(exchange.broadcast, model=self.model),
            update=replace(exchange.update, tensors=tensors),
        )

    def _held(self, name: str, tensor: Tensor) -> tuple[str, Tensor]:
        layer, _, kind = name.rpartition(".")
        if layer not in self.renamed:
            return name, tensor
        return f"{self.renamed[layer]}.{kind}", tensor.flatten(1) if kind == "weight" else tensor


def as_dense(model: nn.Module, spec: InputSpec) -> Dense:
    """The model with a dense layer in the place of every convolution that covers its input.

    >>> from seepage.core.types import Modality
    >>> spec = InputSpec(modality=Modality.IMAGE, shape=(1, 4, 4), num_classes=2)
    >>> model = nn.Sequential(nn.Conv2d(1, 6, 4), nn.ReLU(), nn.Flatten(), nn.Linear(6, 2))
    >>> seen = as_dense(model, spec)
    >>> seen.layer("0"), seen.model[0][1]
    ('0.1', Linear(in_features=16, out_features=6, bias=True))
    """
    if not modules_of(model, *_CONVOLUTIONS):
        return Dense(model, {})
    return remembered(model, ("covering", spec.shape), lambda: _as_dense(model, spec))


def _as_dense(model: nn.Module, spec: InputSpec) -> Dense:
    covering = _covering(model, spec)
    if not covering:
        return Dense(model, {})
    # The attacks' copy: the weights are views of the original's, which attacks leave alone.
    ours = beside(model)
    for name, dims in covering.items():
        parent, _, own = name.rpartition(".")
        setattr(ours.get_submodule(parent), own, _linear(model.get_submodule(name), dims))
    return Dense(ours, {name: f"{name}.1" for name in covering})


def _covering(model: nn.Module, spec: InputSpec) -> dict[str, int]:
    """Names of convolutions that are applied once to each example, and the dimensions of their kernels."""
    dims: dict[str, int] = {}
    others: set[str] = set()
    parameters = dict(model.named_parameters())
    uses = [id(p) for _, p in model.named_parameters(remove_duplicate=False)]

    def look(name: str, module: nn.Conv2d, args: tuple[Tensor, ...], output: Tensor) -> None:
        inputs, weight = args[0], module.weight
        once = inputs[0].shape == weight[0].shape and output[0].numel() == len(weight)
        own = uses.count(id(weight)) == 1 and f"{name}.weight" in parameters
        if once and own and inputs.dim() == weight.dim() and not any(module.padding) and name not in dims:
            dims[name] = weight.dim() - 2
        else:
            others.add(name)

    with torch.no_grad(), training_mode(model, False), hooked(modules_of(model, *_CONVOLUTIONS), after=look):
        run_model(model, dummy_inputs(spec, PROBE_EXAMPLES, like=model))
    return {name: d for name, d in dims.items() if name not in others}


def _linear(convolution: nn.Module, dims: int) -> nn.Sequential:
    """A dense layer with the weights of a convolution, its outputs in the same shape."""
    held = dict(convolution.named_parameters())
    weight = held["weight"].detach().flatten(1)
    layer = nn.Linear(weight.shape[1], len(weight), bias="bias" in held, device="meta")
    for kind, parameter in held.items():
        flat = weight if kind == "weight" else parameter.detach()
        setattr(layer, kind, nn.Parameter(flat, requires_grad=parameter.requires_grad))
    return nn.Sequential(nn.Flatten(), layer, nn.Unflatten(1, (len(weight), *([1] * dims)))).train(
        convolution.training
    )
