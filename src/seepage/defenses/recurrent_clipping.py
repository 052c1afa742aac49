"""Clipping by example with recurrent layers, whose weights' gradients are never formed for one example.

Over the time steps t, s of one example the squared norm of sum_t delta_t x_t^T is the sum of the products
(delta_t delta_s) (x_t x_s), and the clipped sum of all examples is one matrix product (ghost clipping, Li et
al. 2022, Sec. 4). Weights outside the recurrent layers are taken apart by vmap, which also makes sure that no
example meets another.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from seepage.core.types import Batch
from seepage.defenses.recurrent import Taken, Tape, taken_apart
from seepage.protocol.local import forward_loss

Tensors = dict[str, Tensor]


def has_recurrent(model: nn.Module) -> bool:
    """Whether there is a layer to take care of."""
    return any(isinstance(module, nn.RNNBase) for module in model.modules())


def numbers_an_example(model: nn.Module, parameters: Tensors, batch: Batch) -> int:
    """Held at a time for one example: gradients of the other weights, and the gates at every time step."""
    rnns = {name: module for name, module in model.named_modules() if isinstance(module, nn.RNNBase)}
    others = sum(p.numel() for name, p in parameters.items() if name.rpartition(".")[0] not in rnns)
    gates = sum(len(p) for name, p in parameters.items() if ".weight_hh_" in f".{name}")
    return others + gates * (batch.inputs.shape[1] if batch.inputs.ndim > 1 else 1)


def recurrent_clipped_sum(
    model: nn.Module, parameters: Tensors, buffers: Tensors, batch: Batch, loss: str, *, clip: float
) -> Tensors | None:
    """The sum over the examples of g_i / max(1, ||g_i|| / clip). None where that cannot be had in this way:
    a recurrent layer that is called twice, or whose weights something else uses too, or what vmap refuses.
    """
    if batch.targets is not None:
        return None
    fixed = {name: p.detach() for name, p in parameters.items()}
    tape: Tape = {}

    def loss_of_one(values: Tensors, x: Tensor, y: Tensor) -> Tensor:
        return forward_loss(model, {**values, **buffers}, Batch(x.unsqueeze(0), y.unsqueeze(0)), loss)

    each = vmap(grad(loss_of_one), in_dims=(None, 0, 0), randomness="different")
    try:
        with taken_apart(model, tape):
            grads: Tensors = each(fixed, batch.inputs, batch.labels)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        return None
    groups = [group for place, taken in tape.items() for group in _groups(place, taken[0], parameters)]
    mine = {name for group in groups for name in group.names}
    # A weight that something else uses has a gradient beside the one on the tape.
    if any(len(taken) > 1 for taken in tape.values()) or any(_is_any(grads[name]) for name in mine):
        return None
    others = {name: found for name, found in grads.items() if name not in mine}
    parts = [found.flatten(1).square().sum(dim=1) for found in others.values()]
    norms = torch.stack([*parts, *(group.squares() for group in groups)]).sum(dim=0).sqrt()
    factors = (clip / norms).clamp(max=1.0)  # an all-zero gradient: clip / 0 = inf, clamped to 1
    summed = {name: torch.tensordot(factors, found, dims=1) for name, found in others.items()}
    for group in groups:
        summed |= group.summed(factors)
    return {name: summed[name] for name in parameters}


def _is_any(found: Tensor) -> bool:
    return bool((found if found.stride(0) else found[:1]).any())


@dataclass(frozen=True, kw_only=True)
class _Group:
    """Weights whose gradients have the same rows: the sum over t of delta_t x_t^T, or of delta_t."""

    deltas: Tensor  # (n, T, gates)
    entered: dict[str, Tensor]  # by weight, (n, T, features)
    biases: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.entered, *self.biases)

    def squares(self) -> Tensor:
        """The squared norm of each example's gradients by these weights."""
        _, steps, gates = self.deltas.shape
        features = sum(x.shape[2] for x in self.entered.values())
        if steps * (gates + features) < gates * features:  # numbers to multiply, for each step of an example
            alike = sum((x @ x.mT for x in self.entered.values()), self.deltas.new_tensor(len(self.biases)))
            return (self.deltas @ self.deltas.mT * alike).sum(dim=(1, 2))
        formed = [(self.deltas.mT @ x).square().sum(dim=(1, 2)) for x in self.entered.values()]
        return sum(formed, len(self.biases) * self.deltas.sum(dim=1).square().sum(dim=1))

    def summed(self, factors: Tensor) -> Tensors:
        """Over the examples, each times its factor."""
        rows = _in_a_row(self.deltas * factors[:, None, None])
        found = {name: rows.T @ _in_a_row(x) for name, x in self.entered.items()}
        return found | dict.fromkeys(self.biases, rows.sum(dim=0))


def _in_a_row(steps: Tensor) -> Tensor:
    """(n, T, numbers) to (T n, numbers): time comes first in memory, so that nothing is copied."""
    return steps.transpose(0, 1).flatten(0, 1)


def _groups(place: str, taken: Taken, parameters: Tensors) -> list[_Group]:
    """One where input and state enter the gates as a sum, else one each (a GRU)."""
    layer, _, suffix = place.rpartition(".")
    prefix = f"{layer}." if layer else ""
    kinds = {"ih": (taken.of_given, taken.inputs), "hh": (taken.of_kept, taken.before)}
    found = []
    for together in (("ih", "hh"),) if taken.of_given is taken.of_kept else (("ih",), ("hh",)):
        weights = {f"{prefix}weight_{kind}_{suffix}": kinds[kind][1] for kind in together}
        biases = [f"{prefix}bias_{kind}_{suffix}" for kind in together]
        group = _Group(
            deltas=kinds[together[0]][0],
            entered={name: x for name, x in weights.items() if name in parameters},
            biases=tuple(name for name in biases if name in parameters),
        )
        found += [group] if group.names else []
    return found
