"""A convolution that transmits its input unaltered (Boenisch et al. 2021, Section 7).

One filter for each feature map that carries data: zero everywhere but for a one in the middle, at the index
of that map. Where one tap cannot reach every value (a stride, or a border without padding), several filters
with different taps share the work: a stride of 2 sends the four phases of a map to four maps, which is
space-to-depth and needs four times the filters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations

import torch
from torch import Tensor, nn

from seepage.attacks.traps.carried import Carried, Hiding
from seepage.core.errors import NotApplicable


@dataclass(frozen=True)
class _Axis:
    """Along one axis: the tap that each input position is carried by, and where it comes out."""

    tap: Tensor
    out: Tensor


@dataclass(frozen=True)
class _Plan:
    """Which (feature map, tap) pairs need a filter of their own, and what each of them carries."""

    source: Tensor
    tap_y: Tensor
    tap_x: Tensor
    """(filters,) the one weight of each filter that is not zero."""
    filter_of: Tensor
    out_y: Tensor
    out_x: Tensor
    """(d,) for every carried value: its filter and its place in that filter's map."""


@torch.no_grad()
def pass_through_conv(
    layer: nn.Conv2d,
    carried: Carried,
    hiding: Hiding,
    *,
    name: str,
    out_shape: tuple[int, ...],
    silence: bool,
) -> Carried:
    """Rewrite `layer` in place; with `silence` the filters that carry nothing yield no positive value."""
    plan = _plan(layer, carried, out_shape, name)
    count, group = len(plan.source), plan.filter_of
    order = hiding.order(layer.out_channels, carried.where)
    used, rest = order[:count], order[count:]
    gain = hiding.gains(count, layer.weight)
    least = torch.zeros_like(gain).scatter_reduce(0, group, carried.least, "amin")
    lift = torch.zeros_like(gain) if layer.bias is None else -gain * least
    if silence:
        _silence(layer, rest, carried)
    filters = torch.zeros_like(layer.weight[used])
    if hiding.on:
        mute = carried.silent.view(carried.shape[0], -1).all(dim=1)
        filters[:, mute] = layer.weight[used][:, mute]  # as measure 4 of Appendix B
    filters[torch.arange(count, device=used.device), plan.source, plan.tap_y, plan.tap_x] = gain
    layer.weight[used] = filters
    if layer.bias is not None:
        layer.bias[used] = lift
    is_rest = torch.zeros(out_shape, dtype=torch.bool, device=used.device)
    is_rest[rest] = True
    return replace(
        carried,
        shape=out_shape,
        where=(used[group] * out_shape[1] + plan.out_y) * out_shape[2] + plan.out_x,
        gain=gain[group] * carried.gain,
        offset=gain[group] * carried.offset + lift[group],
        silent=torch.zeros_like(is_rest).flatten(),
        negative=is_rest.flatten() & silence,
        non_negative=False,
    )


def _plan(layer: nn.Conv2d, carried: Carried, out_shape: tuple[int, ...], name: str) -> _Plan:
    if layer.groups != 1:
        raise NotApplicable(
            f"'{name}' is a grouped convolution, whose filters do not see all feature maps: the pass-through "
            "needs groups = 1."
        )
    _, height, width = carried.shape
    rows = _axis(layer, 0, height, out_shape[1], name)
    columns = _axis(layer, 1, width, out_shape[2], name)
    channel, place = carried.where // (height * width), carried.where % (height * width)
    y, x = place // width, place % width
    size_y, size_x = layer.kernel_size
    needed, group = ((channel * size_y + rows.tap[y]) * size_x + columns.tap[x]).unique(return_inverse=True)
    if len(needed) > layer.out_channels:
        raise NotApplicable(
            f"'{name}' has {layer.out_channels} filters, but {len(needed)} feature maps are needed to carry "
            f"every input value past it (kernel {layer.kernel_size}, stride {layer.stride}): data would be "
            "lost. A model with more filters there, or an attack that optimises, could be tried."
        )
    return _Plan(
        source=needed // (size_y * size_x),
        tap_y=needed // size_x % size_y,
        tap_x=needed % size_x,
        filter_of=group,
        out_y=rows.out[y],
        out_x=columns.out[x],
    )


def _silence(layer: nn.Conv2d, rest: Tensor, carried: Carried) -> None:
    """Filters that carry noise get "negative input to the ReLU function" (Section 7)."""
    noise = -layer.weight[rest].abs()
    if not carried.non_negative and layer.bias is None:
        noise = torch.zeros_like(noise)
    layer.weight[rest] = noise
    if layer.bias is not None:
        below = -layer.bias[rest].abs()
        if not carried.non_negative:  # then this is the first layer: all its inputs are bounded
            reach = torch.maximum(carried.least.abs(), carried.most.abs()).max()
            below += 1.001 * noise.sum(dim=(1, 2, 3)) * reach
        layer.bias[rest] = below


def _axis(layer: nn.Conv2d, axis: int, size: int, out_size: int, name: str) -> _Axis:
    """The fewest taps that reach all positions, the middle one first; out = (place + pad - tap) / stride."""
    kernel, stride, dilation = layer.kernel_size[axis], layer.stride[axis], layer.dilation[axis]
    pad = _padding_before(layer, axis)
    position = torch.arange(size, device=layer.weight.device)
    taps = sorted(range(kernel), key=lambda tap: abs(2 * tap - (kernel - 1)))
    shifted = torch.stack([position + pad - tap * dilation for tap in taps])  # (taps, size)
    out = torch.div(shifted, stride, rounding_mode="floor")
    reached = (shifted % stride == 0) & (out >= 0) & (out < out_size)
    if not reached.any(dim=0).all():
        raise NotApplicable(
            f"'{name}' never looks at some of the positions it is given (kernel {kernel}, stride {stride}, "
            f"padding {pad}), so input values are lost there and cannot be passed on."
        )
    chosen = next(
        torch.tensor(subset, device=position.device)
        for count in range(1, kernel + 1)
        for subset in combinations(range(kernel), count)
        if reached[list(subset)].any(dim=0).all()
    )
    first = chosen[reached[chosen].int().argmax(dim=0)]  # (size,) the first chosen tap that reaches it
    order = torch.tensor(taps, device=position.device)
    return _Axis(tap=order[first], out=out[first, position])


def _padding_before(layer: nn.Conv2d, axis: int) -> int:
    if layer.padding == "valid":
        return 0
    if layer.padding == "same":  # torch puts the smaller half in front
        return layer.dilation[axis] * (layer.kernel_size[axis] - 1) // 2
    return int(layer.padding[axis])
