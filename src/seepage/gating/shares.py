"""What each example puts into an update, layer by layer, from one pass of the client's own.

An example with input a_i at a dense layer and backward signal d_i there adds d_i a_i^T to the layer's
gradient and d_i to that of the bias. A server divides rows by biases (Geiping et al. 2020, Prop. 3.1), so a
row that one example alone fires *is* that example. Everything here follows from d (n, N).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.attacks.reading.unmixing.mixture import ROWS_EACH
from seepage.core.types import Batch
from seepage.models.hooks import hooked, modules_of
from seepage.protocol import LOSSES, training_mode

_OWNED = 1e-3
"""Share of a row's signal that others may have, so that it still shows one example. Derived: what is read is
then off by a thousandth of the others' values, less than a grey step."""

_ALIKE = 0.9
"""Cosine of rows that measure the same thing. Derived: random rows of ten or more inputs stay below; noise
of a fifth of each weight leaves 0.96."""
_TOLD_APART = 2 * ROWS_EACH
"""Active neurons for each example, from which on a search tells them apart. Tested: the map of batches in
`benchmarks/honest_batches_map.py`; below, it ends without some or all of them."""
_SCREENED = 64
"""Columns in which rows are compared first. Derived: of rows with a cosine of 0.9 the cosine in so many lies
above half of that but for one case in a million, unless a few columns hold all of their weight."""


@dataclass(frozen=True)
class LayerShares:
    """One dense layer that is applied once to each example."""

    name: str
    signals: Tensor
    """(n, N) the backward signals of the examples at what a server can read: rows, and rungs of a ladder."""
    norms: Tensor | None = None
    """(n,) of what each example sends back through the last layer, to all that lies before it."""
    inputs: int = 0
    """Values that the layer reads."""
    rungs: int = 0
    """Of the columns, the last so many are differences of rows that measure the same thing (imprint)."""

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
        size = self.signals.abs()
        fires = size > _OWNED * size.sum(dim=0)
        left = torch.ones(len(fires), dtype=torch.bool)
        while bool(left.any()):
            alone = fires[left].sum(dim=0) == 1
            reached = left & fires[:, alone].any(dim=1)
            if not bool(reached.any()):
                break
            left &= ~reached
        return ~left

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
        left = ~self.peelable()
        active = int((self.signals[left] != 0).any(dim=0).sum())
        # With others read already the update is blocked anyway, and whom a search may reach is named as well.
        each = ROWS_EACH if not bool(left.all()) else _TOLD_APART
        enough = active >= each * int(left.sum()) and int(left.sum()) < self.inputs
        return left if enough else torch.zeros_like(left)


def layer_shares(model: nn.Module, batch: Batch, loss: str) -> list[LayerShares]:
    """Of every nn.Linear that is applied once to each example, in the order of execution.

    >>> net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    >>> [s.name for s in layer_shares(net, Batch(torch.rand(3, 4), torch.tensor([0, 1, 1])), "cross_entropy")]
    ['0', '2']
    """
    calls: list[tuple[str, Tensor]] = []

    def keep(name: str, _module: nn.Module, _args: tuple[Tensor, ...], output: Tensor) -> None:
        if output.requires_grad:
            output.retain_grad()
            calls.append((name, output))

    summed = LOSSES["cross_entropy_sum" if loss == "cross_entropy" else loss]
    with torch.enable_grad(), training_mode(model, False), hooked(modules_of(model, nn.Linear), after=keep):
        value = summed(model(batch.inputs), batch.labels)
    outputs = [output for _, output in calls]
    grads = torch.autograd.grad(value, outputs, allow_unused=True) if outputs else ()
    found = []
    for (name, output), grad in zip(calls, grads, strict=True):
        if grad is not None and output.dim() == 2 and len(output) == len(batch):
            layer = model.get_submodule(name)
            # A fishing head keeps a gradient of its own and sends none back but for the example it is after.
            sends = (
                (grad @ layer.get_parameter("weight").detach()).norm(dim=1) if output is outputs[-1] else None
            )
            rungs = _rungs(layer, grad)
            signals = torch.cat([grad, rungs], dim=1) if rungs.shape[1] else grad
            reads = layer.get_parameter("weight").shape[1]
            found.append(LayerShares(name, signals, sends, reads, rungs.shape[1]))
    return found


@torch.no_grad()
def _rungs(layer: nn.Module, signals: Tensor) -> Tensor:
    """(n, rungs) differences of neighbours on a ladder of biases, whose rows point the same way."""
    weight, bias = layer.weight, layer.bias
    if not isinstance(weight, Tensor) or not isinstance(bias, Tensor):
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
    rows = nn.functional.normalize(weight[order], dim=1)
    return (rows[1:] * rows[:-1]).sum(dim=1)
