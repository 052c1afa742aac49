"""What each example puts into an update, layer by layer, from one pass of the client's own.

An example with input a_i at a dense layer and backward signal d_i there adds d_i a_i^T to the layer's
gradient and d_i to that of the bias. A server divides rows by biases (Geiping et al. 2020, Prop. 3.1), so a
row that one example alone fires *is* that example. Everything here follows from d (n, N). A convolution
whose kernel covers all that it reads is such a layer by another name. Layers that are applied at several
places add up over them: their rows show no input, but who has them for itself is alone in them.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seepage.attacks.reading.unmixing.mixture import ROWS_EACH
from seepage.core.types import Batch
from seepage.models.hooks import hooked, modules_of
from seepage.protocol import training_mode
from seepage.protocol.local import forward_loss

_OWNED = 1e-3
"""Share of a row's signal that others may have, so that it still shows one example. Derived: what is read is
then off by a thousandth of the others' values, less than a grey step."""

ALONE = 0.9
"""Share of a number of the update that one example has, so that a search for it has nothing else to fit.
Derived: a D-SNR of nine."""
_ALIKE = 0.9
"""Cosine of rows that measure the same thing. Derived: random rows of ten or more inputs stay below; noise
of a fifth of each weight leaves 0.96."""
_TOLD_APART = 2 * ROWS_EACH
"""Active neurons for each example, from which on a search tells them apart. Tested: the map of batches in
`benchmarks/honest_batches_map.py`; below, it ends without some or all of them."""
_CLASSES_EACH = 2
"""The same of the last layer, whose signals are known up to probabilities: classes for each example. Tested:
a head of ten classes gives the features of five examples (`test_the_last_layer_tells_few_examples_apart`)."""
_SCREENED = 64
"""Columns in which rows are compared first. Derived: of rows with a cosine of 0.9 the cosine in so many lies
above half of that but for one case in a million, unless a few columns hold all of their weight."""


Bools = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class LayerShares:
    """One layer with weights, as each example passes it."""

    name: str
    signals: Tensor
    """(n, N) the backward signals of the examples at what a server can read: rows, and rungs of a ladder."""
    norms: Tensor | None = None
    """(n,) of what each example sends back through the last layer, to all that lies before it."""
    inputs: int = 0
    """Values that the layer reads."""
    rungs: int = 0
    """Of the columns, the last so many are differences of rows that measure the same thing (imprint)."""
    reads_input: bool = False
    """The model's own input reaches it as it is."""
    attacked: bool = True
    """Some attack of the catalogue divides its rows: a dense layer with a bias."""
    places: bool = False
    """It is applied at several places of each example: `signals` are norms over them, times the example's
    norm, and no row shows what it reads."""

    def owned(self) -> Tensor:
        """(n,) neurons that each example owns: all others together have next to no signal there.

        >>> shares = LayerShares("0", torch.tensor([[1.0, 2.0, 0.0], [0.0, 1.0, 0.0]]))
        >>> shares.owned().tolist()
        [1, 0]
        """
        size = self.signals.abs()
        total = size.sum(dim=0)
        alone = (size >= (1 - _OWNED) * total) & (total > 0)
        return alone.sum(dim=1)

    def peelable(self) -> Tensor:
        """(n,) bool: examples that peeling reaches, each one alone at some row once those before it are gone.

        >>> chain = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0], [0.0, 0.0, 1.0]])
        >>> LayerShares("0", chain).peelable().tolist()
        [True, True, True]
        """
        return torch.from_numpy(self._reached)

    @cached_property
    def _reached(self) -> Bools:
        size = self.signals.abs()
        # small boolean matrices: numpy's calls take a third of the time
        fires: Bools = (size > _OWNED * size.sum(dim=0)).cpu().numpy()
        counts, left = fires.sum(axis=0), np.ones(len(fires), dtype=bool)
        while left.any():
            reached = left & fires[:, counts == 1].any(axis=1)
            if not reached.any():
                break
            left &= ~reached
            counts = counts - fires[reached].sum(axis=0)
        return ~left

    def alone(self) -> Tensor:
        """(n,) numbers of this layer's gradient that an example has almost for itself.

        >>> LayerShares("0", torch.tensor([[9.0, 1.0], [1.0, 1.0]]), inputs=27).alone().tolist()
        [27, 0]
        """
        size = self.signals.abs()
        total = size.sum(dim=0)
        return ((size >= ALONE * total) & (total > 0)).sum(dim=1) * self.inputs

    def dominance(self) -> Tensor:
        """(n,) D-SNR of each example (Garov et al. 2024): its gradient over the sum of all others'."""
        assert self.norms is not None
        return self.norms / (self.norms.sum() - self.norms).clamp_min(1e-12 * float(self.norms.max()) + 1e-30)

    def unmixable(self) -> Tensor:
        """(n,) bool: those left by peeling, where neurons and values are enough to tell them apart by search.

        >>> chain = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0], [0.0, 1.0, 1.0]])
        >>> LayerShares("0", chain, inputs=9).unmixable().tolist()  # two examples, three neurons
        [False, False, False]
        >>> LayerShares("0", chain.repeat(1, 9), inputs=9).unmixable().tolist()
        [False, True, True]
        """
        left = torch.from_numpy(~self._reached)
        number = int((~self._reached).sum())
        if number == 0 or number >= self.inputs:
            return torch.zeros_like(left)
        active = int((self.signals[left] != 0).any(dim=0).sum())
        # With others read already the update is blocked anyway, and whom a search may reach is named as well.
        each = ROWS_EACH if number < len(left) else _TOLD_APART
        each = min(each, _CLASSES_EACH) if self.norms is not None else each
        return left if active >= each * number else torch.zeros_like(left)


def layer_shares(model: nn.Module, batch: Batch, loss: str, *, train: bool = False) -> list[LayerShares]:
    """Of every dense layer and convolution that clients train, in the order of execution.

    loss: a name from `LOSSES`, or "auto". train: batch norms take the batch's own statistics.

    >>> net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    >>> [s.name for s in layer_shares(net, Batch(torch.rand(3, 4), torch.tensor([0, 1, 1])), "cross_entropy")]
    ['0', '2']
    """
    calls: list[tuple[str, nn.Module, Tensor, Tensor]] = []

    def keep(name: str, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        weight = module._parameters.get("weight")
        if weight is None or not weight.requires_grad or len(output) != len(batch):
            return None
        calls.append((name, module, args[0].detach(), output))
        return output.clone()  # an activation in place would change whose signal is asked for

    # A pass in train mode moves statistics: those of a copy.
    held = {name: buffer.clone() for name, buffer in model.named_buffers()} if train else {}
    as_it_is = all(module.training == train for module in model.modules())
    mode = nullcontext() if as_it_is else training_mode(model, train)
    with torch.enable_grad(), mode, hooked(modules_of(model, *_KINDS), after=keep):
        value = forward_loss(model, held, batch, loss)
    outputs = [output for *_, output in calls]
    grads = torch.autograd.grad(value, outputs, allow_unused=True) if outputs else ()
    last = max((i for i, (_, module, *_) in enumerate(calls) if isinstance(module, nn.Linear)), default=-1)
    passes: dict[str, list[Pass]] = {}
    for (name, module, read, _), grad in zip(calls, grads, strict=True):
        if grad is not None:
            passes.setdefault(name, []).append((module, read, grad))
    return [
        _shares(name, each, batch, last=last >= 0 and name == calls[last][0]) for name, each in passes.items()
    ]


Pass = tuple[nn.Module, Tensor, Tensor]
"""A layer, what it read, and the gradient of what it gave."""
_KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@torch.no_grad()
def _shares(name: str, passes: list[Pass], batch: Batch, *, last: bool) -> LayerShares:
    layer, read, grad = passes[-1]
    dense = isinstance(layer, nn.Linear)
    weight, bias = layer.get_parameter("weight"), layer._parameters.get("bias")
    by_place = [_by_place(each, weight, dense) for *_, each in passes]
    signals = by_place[0] if len(passes) == 1 else torch.cat(by_place, dim=2)  # (n, N, places)
    inputs = weight[0].numel()
    # A fishing head keeps a gradient of its own and sends none back but for the example it is after.
    sends = (grad @ weight).flatten(1).norm(dim=1) if last else None
    if signals.shape[2] > 1:
        length = torch.stack([each.flatten(1).norm(dim=1) for _, each, _ in passes]).norm(dim=0)
        norms = signals.norm(dim=2) * length[:, None]
        return LayerShares(name, norms, sends, inputs, attacked=False, places=True)
    signals = signals[:, :, 0]
    rungs = _rungs(weight.flatten(1), None if last else bias, signals)
    columns = torch.cat([signals, rungs], dim=1) if rungs.shape[1] else signals
    same = read.shape[0] == len(batch) and read.numel() == batch.inputs.numel()
    return LayerShares(
        name, columns, sends, inputs, rungs.shape[1],
        reads_input=same and torch.equal(read.flatten(), batch.inputs.flatten().to(read.dtype)),
        attacked=dense and bias is not None,
    )  # fmt: skip


def _by_place(grad: Tensor, weight: Tensor, dense: bool) -> Tensor:
    """(n, N, places)"""
    by_unit = grad.transpose(1, -1) if dense and grad.dim() > 2 else grad
    return by_unit.reshape(len(grad), weight.shape[0], -1)


def _rungs(weight: Tensor, bias: Tensor | None, signals: Tensor) -> Tensor:
    """(n, rungs) differences of neighbours on a ladder of biases, whose rows point the same way."""
    if bias is None:
        return signals[:, :0]
    order = bias.argsort()
    # Rows that point the same way do so in a part of their columns: a full look is dear, and seldom needed.
    part = weight[:, :: max(1, weight.shape[1] // _SCREENED)]
    if not bool((_neighbours(part, order) > _ALIKE / 2).any()):
        return signals[:, :0]
    alike = _neighbours(weight, order) > _ALIKE
    return signals[:, order].diff(dim=1)[:, alike]


def _neighbours(weight: Tensor, order: Tensor) -> Tensor:
    """(N - 1,) cosines of rows that are next to each other in this order."""
    rows = weight[order]
    lengths: Tensor = rows.norm(dim=1)
    cosines: Tensor = (rows[1:] * rows[:-1]).sum(dim=1)
    return cosines / (lengths[1:] * lengths[:-1]).clamp_min(1e-30)
