"""Many local steps, differentiated in the memory of one: states are played again instead of being kept.

The gradient of what S steps lead to needs the state before each of them, the last one first. Keeping all of
them takes S times the weights. Here the way is halved: to go back through a stretch, play its first half
forward, go back through its second half, then through its first. Beside one step's graph, log2(S) states are
in memory at a time, and every step is played about log2(S) / 2 times more (Griewank 1992 shows that memory
and time can both grow like log S).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from seepage.protocol.optimising import State, Step


@dataclass(frozen=True)
class Replay:
    """The steps to take, and where to start from."""

    step: Step
    batches: Sequence[Tensor]
    """Index of each step's examples."""
    start: State

    def final_state(self, inputs: Tensor, labels: Tensor) -> State:
        """The state after the last step, differentiable with respect to the inputs and soft labels."""
        return tuple(_Replayed.apply(self, inputs, labels))  # type: ignore[no-untyped-call]

    def forward(self, inputs: Tensor, labels: Tensor, state: State, first: int, last: int) -> State:
        """Play steps `first` to `last` - 1; nothing is kept for a backward pass."""
        for number in range(first, last):
            where = self.batches[number].to(inputs.device)
            with _same_chances(inputs.device, number):
                state = self.step(
                    number, inputs[where], labels[where], *_watched(state), differentiable=False
                )
            state = tuple(tensor.detach() for tensor in state)
        return state


class _Backward:
    """One backward pass: gathers the gradient of inputs and labels."""

    def __init__(self, replay: Replay, inputs: Tensor, labels: Tensor) -> None:
        self.replay, self.inputs, self.labels = replay, inputs.detach(), labels.detach()
        self.of_inputs = torch.zeros_like(self.inputs)
        self.of_labels = torch.zeros_like(self.labels) if labels.is_floating_point() else None

    def through(self, state: State, first: int, last: int, adjoint: Sequence[Tensor | None]) -> State:
        """From the gradient of the state after `last` - 1 to that of `state`, which stands before `first`."""
        if last - first == 1:
            return self._one(state, first, adjoint)
        middle = (first + last) // 2
        halfway = self.replay.forward(self.inputs, self.labels, state, first, middle)
        adjoint = self.through(halfway, middle, last, adjoint)
        del halfway
        return self.through(state, first, middle, adjoint)

    def _one(self, state: State, number: int, adjoint: Sequence[Tensor | None]) -> State:
        where = self.replay.batches[number].to(self.inputs.device)
        x, leaves = self.inputs[where].requires_grad_(), _watched(state)
        y = self.labels[where]
        searched = [x] if self.of_labels is None else [x, y.requires_grad_()]
        with torch.enable_grad(), _same_chances(x.device, number):
            after = self.replay.step(number, x, y, *leaves, differentiable=True)
        # a last step's velocity leads nowhere, and the model may hide a parameter from the loss
        pairs = [(a, g) for a, g in zip(after, adjoint, strict=True) if g is not None and a.requires_grad]
        del after
        wanted = [*searched, *(leaves if number else ())]  # nobody asks for that of the received weights
        found = torch.autograd.grad([a for a, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True)
        for total, gradient in zip((self.of_inputs, self.of_labels), found[: len(searched)], strict=False):
            if total is not None and gradient is not None:
                total.index_add_(0, where, gradient)
        before = zip(found[len(searched) :], leaves, strict=False)
        return tuple(torch.zeros_like(leaf) if g is None else g for g, leaf in before)


class _Replayed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, replay: Replay, inputs: Tensor, labels: Tensor) -> State:
        ctx.replay = replay  # type: ignore[attr-defined]
        ctx.save_for_backward(inputs, labels)
        with torch.enable_grad():  # the steps need gradients of their own
            return replay.forward(inputs.detach(), labels.detach(), replay.start, 0, len(replay.batches))

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, *adjoint: Tensor | None) -> tuple[None, Tensor, Tensor | None]:
        inputs, labels = ctx.saved_tensors  # type: ignore[attr-defined]
        replay: Replay = ctx.replay  # type: ignore[attr-defined]
        going = _Backward(replay, inputs, labels)
        with torch.enable_grad():
            going.through(replay.start, 0, len(replay.batches), adjoint)
        return None, going.of_inputs, going.of_labels


def _watched(state: State) -> State:
    return tuple(tensor.detach().requires_grad_() for tensor in state)


@contextmanager
def _same_chances(device: torch.device, number: int) -> Iterator[None]:
    """Dropout and the like must fall the same way whenever a step is played again."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(number)
        yield
