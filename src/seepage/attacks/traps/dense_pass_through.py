"""A fully-connected layer that transmits its input unaltered (Boenisch et al. 2021, Appendix B).

Plain: one weight of one for each value, zero elsewhere. Hidden, by the four measures of the appendix:
(1) values go to permuted neurons, (2) with random positive gains that are undone after extraction,
(3) neurons that carry nothing get random, mainly negative weights and never fire, and (4) what leaves such
dead neurons has random weights of both signs.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from seepage.attacks.traps.carried import Carried, Hiding
from seepage.core.errors import NotApplicable

_POSITIVE_SHARE = 0.1
"""Share of positive weights among the random ones into dead neurons. Paper: Boenisch et al. 2021, Appendix B,
measure 3, "mainly negative"."""


@torch.no_grad()
def pass_through_linear(layer: nn.Linear, carried: Carried, hiding: Hiding, *, name: str) -> Carried:
    """Rewrite `layer` in place so that each carried value leaves it at a neuron of its own."""
    count, neurons = len(carried.where), layer.out_features
    if count > neurons:
        raise NotApplicable(
            f"layer '{name}' has {neurons} neurons for {count} input values, so the input cannot pass it "
            "unaltered: trap this layer or an earlier one."
        )
    order = hiding.order(neurons, carried.where)
    used, dead = order[:count], order[count:]
    gain = hiding.gains(count, layer.weight)
    # A bias lifts what could be negative, for the ReLU would cut it off.
    lift = torch.zeros_like(gain) if layer.bias is None else (-gain * carried.least).clamp_min(0)
    std = float(layer.weight.std()) if layer.weight.numel() > 1 else 1.0
    weight = torch.zeros_like(layer.weight)
    bias = torch.zeros(neurons, device=weight.device, dtype=weight.dtype)
    if hiding.on:
        mute = carried.silent.nonzero().squeeze(1)
        weight[:, mute] = hiding.noise((neurons, len(mute)), std, weight)  # measure 4
        _fill_dead(weight, bias, dead, carried, hiding, std, has_bias=layer.bias is not None)
    weight[used, carried.where] = gain
    bias[used] = lift
    layer.weight.copy_(weight)
    if layer.bias is not None:
        layer.bias.copy_(bias)
    is_dead = torch.zeros(neurons, dtype=torch.bool, device=weight.device)
    is_dead[dead] = True
    return replace(
        carried,
        shape=(neurons,),
        where=used,
        gain=gain * carried.gain,
        offset=gain * carried.offset + lift,
        silent=torch.zeros_like(is_dead) if hiding.on else is_dead,
        negative=is_dead,
        non_negative=bool((gain * carried.least + lift >= 0).all()) and not hiding.on,
    )


def _fill_dead(
    weight: Tensor,
    bias: Tensor,
    dead: Tensor,
    carried: Carried,
    hiding: Hiding,
    std: float,
    *,
    has_bias: bool,
) -> None:
    """Measure 3, with a bias that makes sure: the largest weighted sum any input can reach is taken off."""
    if not has_bias and not carried.non_negative:
        return  # nothing could keep such a neuron below zero; its weights stay zero
    shape = (len(dead), len(carried.where))
    into = -hiding.noise(shape, std, weight).abs()
    if has_bias:
        into = torch.where(hiding.uniform(shape, weight) < _POSITIVE_SHARE, -into, into)
    weight[dead.unsqueeze(1), carried.where] = into
    reach = torch.maximum(into * carried.least, into * carried.most).sum(dim=1)  # (dead,)
    # What rounding of that many terms may add is far below a thousandth of it.
    bias[dead] = -1.001 * reach.clamp_min(0) - hiding.noise((len(dead),), std, weight).abs()
