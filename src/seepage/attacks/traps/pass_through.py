"""Carrying the model's input unaltered to one of its dense layers (Boenisch et al. 2021, Section 7, App. B).

Walks along the chain of modules and rewrites each so that every input value arrives at the wanted layer in
a place of its own. The result is probed with made-up inputs before it is trusted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from seepage.attacks.traps.carried import Carried, Hiding
from seepage.attacks.traps.conv_pass_through import pass_through_conv
from seepage.attacks.traps.dense_pass_through import pass_through_linear
from seepage.core.errors import NotApplicable
from seepage.core.types import InputSpec
from seepage.models.hooks import layer_input
from seepage.models.path import Step
from seepage.models.probes import dummy_inputs

_PROBES = 8
"""Made-up inputs. Cost: one pass forward for all of them."""
_TRANSMITTED = 1e-4
"""Largest error of the probe, as a share of the value range. Derived: a fortieth of a grey step."""
_SILENCING_MARGIN = 1e-3
"""How far below zero batch norm puts a silenced map, so that its rounding cannot lift it above. Derived:
thousands of last digits of float32 for values around 1."""
_UNALTERED = (nn.Flatten, nn.Unflatten, nn.Identity, nn.Dropout, nn.Dropout2d)
"""Modules that leave values as they are while dropout is off."""
_POOLS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)


def carry(
    model: nn.Module,
    layer: str,
    steps: Sequence[Step],
    start: Carried,
    hiding: Hiding,
    spec: InputSpec,
    *,
    train_mode: bool = False,
) -> Carried:
    """`pass_through` to the layer of the model that `steps` lead to, and tried."""
    carried = pass_through(steps, start, hiding, train_mode=train_mode)
    verify(model, layer, carried, spec)
    return carried


def pass_through(
    steps: Sequence[Step], start: Carried, hiding: Hiding, *, train_mode: bool = False
) -> Carried:
    """Rewrite the modules of `steps` in place and return where the input values end up."""
    carried = start
    convs = [step.name for step in steps if isinstance(step.module, nn.Conv2d)]
    for step in steps:
        match step.module:
            case nn.Conv2d() as conv:
                last = step.name == convs[-1]
                carried = pass_through_conv(
                    conv, carried, hiding, name=step.name, out_shape=step.out_shape, silence=last
                )
            case nn.Linear() as linear:
                carried = pass_through_linear(linear, carried, hiding, name=step.name)
            case _BatchNorm() as norm:
                carried = _neutralise(norm, carried, name=step.name, train_mode=train_mode)
            case nn.ReLU():
                carried = _relu(carried, step.name)
            case module if isinstance(module, _UNALTERED):
                if isinstance(module, nn.Dropout | nn.Dropout2d) and train_mode and module.p > 0:
                    raise NotApplicable(
                        f"dropout '{step.name}' is on while clients train, so input values are lost at "
                        "random before the dense layer."
                    )
                carried = replace(carried, shape=step.out_shape)
            case module:
                raise NotApplicable(_why_not(module, step.name))
    return carried


def _why_not(module: nn.Module, name: str) -> str:
    kind = type(module).__name__
    if isinstance(module, _POOLS):
        return (
            f"'{name}' ({kind}) keeps one value of each window. A convolution before it cannot spread the "
            "window's values over several maps, because it treats all positions alike, so more channels do "
            "not help: data is lost before the dense layer. Only a convolution's own stride can be carried."
        )
    return (
        f"'{name}' ({kind}) lies between the input and the dense layer and changes what passes it: the "
        "pass-through needs convolutions, dense layers, batch norm and ReLU only; an attack that optimises "
        "may work."
    )


def _relu(carried: Carried, name: str) -> Carried:
    slack = 1e-5 * float((carried.most - carried.least).max())
    if bool((carried.least < -slack).any()):
        raise NotApplicable(
            f"input values may be negative where the ReLU {name or '(a function)'} cuts them off, and no "
            "layer before it has a bias to lift them: inputs in [0, 1] would pass."
        )
    return replace(
        carried,
        silent=carried.silent | carried.negative,
        negative=torch.zeros_like(carried.negative),
        non_negative=True,
    )


@torch.no_grad()
def _neutralise(norm: _BatchNorm, carried: Carried, *, name: str, train_mode: bool) -> Carried:
    """Make eval-mode batch norm the identity by its own parameters: weight = sigma, bias = mu."""
    if train_mode or norm.running_mean is None or norm.running_var is None:
        raise NotApplicable(
            f"batch norm '{name}' uses the statistics of the client's batch, which mixes examples before the "
            "dense layer: the pass-through needs batch_norm = 'eval'."
        )
    mean, sigma = norm.running_mean, (norm.running_var + norm.eps).sqrt()
    channels = len(mean)
    channel = carried.where // (carried.silent.numel() // channels)
    if not norm.affine:
        return replace(
            carried,
            gain=carried.gain / sigma[channel],
            offset=(carried.offset - mean[channel]) / sigma[channel],
            silent=torch.zeros_like(carried.silent),
            negative=torch.zeros_like(carried.negative),
            non_negative=False,
        )
    lift = torch.zeros_like(mean).scatter_reduce(0, channel, carried.least, "amin").neg()
    quiet = (carried.negative | carried.silent).view(channels, -1).all(dim=1)
    norm.weight.copy_(sigma)
    norm.bias.copy_(torch.where(quiet, mean - _SILENCING_MARGIN, mean + lift))
    return replace(
        carried,
        offset=carried.offset + lift[channel],
        silent=torch.zeros_like(carried.silent),
        negative=quiet.unsqueeze(1).expand(channels, carried.silent.numel() // channels).flatten(),
        non_negative=False,
    )


def verify(model: nn.Module, layer: str, carried: Carried, spec: InputSpec) -> float:
    """Largest error, as a share of the value range, with which made-up inputs arrive; or NotApplicable."""
    inputs = dummy_inputs(spec, _PROBES, like=model, seed=1)
    arrived: Tensor = carried.route()(layer_input(model, layer, inputs))
    error = float(((arrived - inputs.flatten(1)).abs() / (carried.high - carried.low)).max())
    if not error <= _TRANSMITTED:
        raise NotApplicable(
            f"the crafted layers do not transmit the input to '{layer}' unaltered (error {error:.2g} of the "
            "value range): the model does something in between that its modules do not show."
        )
    return error
