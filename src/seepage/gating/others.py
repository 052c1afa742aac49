"""Weights that are no dense layer's and no convolution's: recurrent layers, attention, one's own parameters.

What reads them cannot be watched as a layer is, but each example's gradient of them can be had by itself, by
one pass for each. If it is of rank one, the weight was applied once and its rows show what it read, like
those of a dense layer; otherwise it is known who has which numbers alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from seepage.core.types import Batch
from seepage.gating.shares import LayerShares
from seepage.protocol import training_mode
from seepage.protocol.local import forward_loss

_ONE_PLACE = 1e-4
"""Share of a gradient's energy outside its strongest row's direction, up to which it is of rank one. Derived:
the square of what rounding to bfloat16 leaves (4e-3), with room."""
_NO_READERS = (nn.Embedding, nn.EmbeddingBag, _NormBase, nn.LayerNorm, nn.GroupNorm)
"""Tables of tokens, which attacks read by themselves, and scales of what another layer reads too."""


def unmeasured(model: nn.Module, shares: Sequence[LayerShares], numbers: int) -> dict[str, nn.Parameter]:
    """Trained weights with so many numbers or more that `shares` and tables of tokens do not tell of.

    >>> list(unmeasured(nn.LSTM(6, 5), [], 50))
    ['weight_ih_l0', 'weight_hh_l0']
    """
    told = {one.name for one in shares}
    return {
        f"{place}.{name}".removeprefix("."): weight
        for place, module in model.named_modules()
        if place not in told and not isinstance(module, _NO_READERS)
        for name, weight in module._parameters.items()
        if weight is not None and weight.requires_grad and weight.numel() >= numbers
    }


def example_shares(
    model: nn.Module, batch: Batch, loss: str, weights: Mapping[str, nn.Parameter]
) -> list[LayerShares]:
    """Of each of these weights, from one pass for each example, its statistics as they were received.

    >>> net = nn.LSTM(6, 5)
    >>> example_shares(net, Batch(torch.rand(2, 6), torch.tensor([0, 1])), "auto", {})
    []
    """
    if not weights:
        return []
    signals: dict[str, list[Tensor]] = {name: [] for name in weights}
    shown: dict[str, list[tuple[bool, bool]]] = {name: [] for name in weights}
    with torch.enable_grad(), training_mode(model, False):
        for i in range(len(batch)):
            one = batch.select(slice(i, i + 1))
            value = forward_loss(model, {}, one, loss)
            grads = torch.autograd.grad(value, list(weights.values()), allow_unused=True)
            for (name, weight), grad in zip(weights.items(), grads, strict=True):
                rows = (torch.zeros_like(weight) if grad is None else grad).reshape(len(weight), -1)
                signals[name].append(rows.norm(dim=1))
                shown[name].append(_shows(rows, one.inputs))
    found = []
    for name, weight in weights.items():
        once, reads = (all(flags) for flags in zip(*shown[name], strict=True))
        inputs = weight[0].numel()
        if once and not reads:
            inputs = min(inputs, len(weight))  # nothing tells which of its sides reads
        found.append(
            LayerShares(
                name, torch.stack(signals[name]), inputs=inputs, reads_input=once and reads, attacked=False,
                places=not once,
            )
        )  # fmt: skip
    return found


def _shows(rows: Tensor, inputs: Tensor) -> tuple[bool, bool]:
    """(whether all rows are multiples of one, whether that is the example itself)."""
    if rows.shape[1] == 1:
        return False, False
    energy = rows.double().square().sum(dim=1)
    if not bool(energy.max() > 0):
        return True, True  # no gradient, no objection
    direction = rows[energy.argmax()].double() / energy.max().sqrt()
    once = _off(rows.double(), direction) <= _ONE_PLACE
    same = inputs.is_floating_point() and inputs.numel() == len(direction)
    return once, once and same and _off(inputs.reshape(1, -1).double(), direction) <= _ONE_PLACE


def _off(rows: Tensor, direction: Tensor) -> float:
    """Share of the rows' energy outside one direction."""
    energy = float(rows.square().sum())
    return 1 - float((rows @ direction).square().sum()) / energy if energy > 0 else 0.0
