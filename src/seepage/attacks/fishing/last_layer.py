"""The layer before the classification layer, and how strongly features hang on it and on what lies below."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.attacks.fishing.head import Head
from seepage.core.errors import NotApplicable
from seepage.core.types import InputSpec, Knowledge
from seepage.models.hooks import hooked, modules_of, watching
from seepage.models.probes import dummy_inputs, run_model
from seepage.protocol import trainable, training_mode

_PROBES = 8
"""Made-up inputs. Cost: one pass forward for all of them."""

LIVES = (
    "clients take several local steps, and the layer before the classification layer cannot be made to die "
    "after the first one (batch norm, a leaky activation or attention follows it): fishing needs a single "
    "local step here, or a ReLU there."
)


@dataclass(frozen=True, kw_only=True)
class LastLayer:
    """z = V a + v, then something that is 0 for very negative z."""

    name: str
    weight: str
    bias: str
    before: str | None
    """The layer with weights before it, if any."""


@dataclass(frozen=True, kw_only=True)
class Pull:
    """Lengths of d(u.f), the largest over made-up inputs, while all units of the layer are active."""

    unit: Tensor
    """(units,) d(u.f)/dv itself, which no input changes."""
    weight: float
    """In V."""
    below: float
    """In all weights below it."""


def find_last_layer(model: nn.Module, head: Head, spec: InputSpec) -> LastLayer:
    """The last dense or convolutional layer that runs before the classification layer, with its own bias."""
    order: list[str] = []
    layers = modules_of(model, nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)

    def remember(name: str, *_: object) -> None:
        order.append(name)

    with torch.no_grad(), training_mode(model, False), hooked(layers, before=remember):
        run_model(model, dummy_inputs(spec, 2, like=model))
    ran = order[: order.index(head.name)] if head.name in order else []
    names = {id(p): name for name, p in trainable(model).items()}
    weight, bias = (
        names.get(id(getattr(layers[ran[-1]], part)), "") if ran else "" for part in ("weight", "bias")
    )
    if not (weight and bias):
        raise NotApplicable(
            "clients take several local steps, and no dense or convolutional layer with a trained bias "
            "stands before the classification layer, so nothing can be made to die after the first step: "
            "fishing needs a single local step here."
        )
    return LastLayer(name=ran[-1], weight=weight, bias=bias, before=ran[-2] if len(ran) > 1 else None)


def probe_inputs(known: Knowledge, model: nn.Module) -> Tensor:
    """Made-up inputs of several kinds, and public ones where there are any."""
    noise = dummy_inputs(known.input, _PROBES, like=model, seed=known.seed, model_units=known.normalised)
    kinds = [noise]
    if noise.is_floating_point():
        low, high = noise.amin().expand_as(noise[:1]), noise.amax().expand_as(noise[:1])
        kinds += [low, high, torch.where(noise > noise.mean(), high, low)]
    if known.auxiliary is not None:
        kinds.append(known.auxiliary.inputs[:_PROBES].to(noise))
    return torch.cat(kinds)


def height(model: nn.Module, layer: LastLayer, inputs: Tensor) -> float:
    """The largest |z| over the made-up inputs."""
    out: list[Tensor] = []

    def remember(_name: str, _module: nn.Module, _args: object, output: Tensor) -> None:
        out.append(output)

    part = {layer.name: model.get_submodule(layer.name)}
    with torch.no_grad(), training_mode(model, False), hooked(part, after=remember):
        run_model(model, inputs)
    return max(float(out[0].abs().max()), math.sqrt(torch.finfo(out[0].dtype).tiny))


def weights_below(model: nn.Module, head: Head, layer: LastLayer) -> list[nn.Parameter]:
    own = (head.weight, head.bias, layer.weight, layer.bias)
    return [p for name, p in trainable(model).items() if name not in own]


def length(tensors: Sequence[Tensor]) -> float:
    """Of all of them in a row.

    >>> length([torch.tensor([3.0]), torch.tensor([4.0])])
    5.0
    """
    return math.hypot(*(float(t.detach().double().norm()) for t in tensors))


def pull(model: nn.Module, head: Head, layer: LastLayer, u: Tensor, inputs: Tensor) -> Pull:
    """NotApplicable where a unit does not raise u.f whatever the input: nothing would lower it for sure."""
    active = copy.deepcopy(model)
    bias, weight = active.get_parameter(layer.bias), active.get_parameter(layer.weight)
    with torch.no_grad():
        bias.add_(2 * height(model, layer, inputs))
    below = weights_below(active, head, layer)
    units, own, others = [], [0.0], [0.0]
    with training_mode(active, False), watching(active, head.name) as seen:
        for one in inputs.split(1):
            seen.clear()
            run_model(active, one)
            score = (seen[0].flatten(1) @ u.to(seen[0])).sum()
            found = torch.autograd.grad(score, [bias, weight, *below], allow_unused=True)
            if found[0] is None or found[1] is None:
                raise NotApplicable(LIVES)
            units.append(found[0].double().cpu())
            own.append(length([found[1]]))
            others.append(length([g for g in found[2:] if g is not None]))
    unit = units[0]
    if not float(unit.min()) > 0 or any(not torch.allclose(one, unit, rtol=1e-3) for one in units):
        raise NotApplicable(LIVES)
    return Pull(unit=unit, weight=max(own), below=max(others))
