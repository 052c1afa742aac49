"""Gradient matching for any network and batch without a second backward pass: a difference of two gradients.

With g(x) = dL/dw and u = dD/dg, the gradient of the distance is (dg/dx)^T u. Second derivatives are
symmetric, so this is how dL/dx changes when the weights move along u (Pearlmutter 1994, eq. 2):

    dD/dx = [dL/dx (x, w + e u) - dL/dx (x, w)] / e

dL/dx (x, w) comes with the gradient itself, and the other needs no gradients of weights: five products of
matrices a layer in place of seven, none of them differentiated. The distance itself is exact. The pieces of
ReLU and max-pooling are those of the first pass: between them the difference is a derivative, while across
a kink it would be the kink's height over e.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from seepage.attacks.inversion.distances import Distance, Pull, Weights, pull_of
from seepage.attacks.inversion.objective import (
    LARGE_MODEL,
    Candidates,
    Evaluation,
    Objective,
    update_matching,
)
from seepage.attacks.inversion.problem import Problem
from seepage.attacks.inversion.simulate import loss_of
from seepage.protocol import trainable

_STEPS = (0.1, 0.03, 0.01, 0.003)
"""e * |u| / |w| over the square root of the type's epsilon: the first that agrees at the start is taken. A
deep network wants a smaller one. Tested: test_the_step_of_the_difference_lies_on_a_plateau."""
_AGREEMENT = 0.01
"""Largest relative error at the start, by double backprop: a search by signs or by Adam does not notice. No
plateau test yet."""
_DIGITS = 1e3
"""Times epsilon that dL/dx must change by, relatively; otherwise double backprop takes this step. Derived:
dL/dx is rounded to some ten epsilons, which is a hundredth of that."""
_RELU = frozenset({functional.relu, torch.relu, Tensor.relu})
_LEAKY = frozenset({functional.leaky_relu})
_MAX_POOL = frozenset({functional.max_pool2d, torch.max_pool2d})
_OTHER_KINKS = frozenset({
    functional.relu6, functional.hardtanh, functional.hardswish, functional.hardsigmoid, functional.prelu,
    functional.rrelu, functional.threshold, functional.max_pool1d, functional.max_pool3d,
    functional.adaptive_max_pool1d, functional.adaptive_max_pool2d, functional.softshrink,
    functional.hardshrink, torch.max, torch.amax, torch.maximum, torch.minimum, torch.abs, torch.clamp,
    Tensor.max, Tensor.amax, Tensor.abs, Tensor.clamp,
})  # fmt: skip
"""Left to double backprop: a difference across these kinks would be wrong, and they are not followed."""


class _Pieces(TorchFunctionMode):
    """Remembers which piece each ReLU and max-pooling is on, and then stays on it."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Tensor] = []
        self.next: int | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _RELU:
            return self._relu(args[0])
        if func in _LEAKY:
            return self._leaky(*args, **{name: v for name, v in kwargs.items() if name != "inplace"})
        if func in _OTHER_KINKS:
            raise NotImplementedError(f"the pieces of {func} are not followed")
        if func in _MAX_POOL and not kwargs.get("return_indices", False):
            return self._max_pool(args[0], args[1:], kwargs)
        return func(*args, **kwargs)

    def _relu(self, x: Tensor) -> Tensor:
        if self.next is None:
            out = torch.relu(x)
            self.kept.append(out.detach())
            return out
        piece: Tensor = torch.ops.aten.threshold_backward(x, self._piece(), 0)  # x where it was positive
        return piece

    def _leaky(self, x: Tensor, negative_slope: float = 0.01, *_: object) -> Tensor:
        out: Tensor
        if self.next is None:
            self.kept.append(x.detach())
            out = torch.ops.aten.leaky_relu(x, negative_slope)
        else:
            out = torch.ops.aten.leaky_relu_backward(x, self._piece(), negative_slope, False)
        return out

    def _max_pool(self, x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        if self.next is None:
            out, where = functional.max_pool2d_with_indices(x, *args, **kwargs)
            self.kept.append(where)
            return out
        where = self._piece()
        return x.flatten(-2).gather(-1, where.flatten(-2)).reshape(where.shape)

    def _piece(self) -> Tensor:
        assert self.next is not None
        self.next += 1
        return self.kept[self.next - 1]


def directional_matching(
    problem: Problem, distance: Distance, weights: Weights, start: Candidates
) -> Objective | None:
    """The objective by a difference of gradients, or None where it does not hold or does not agree."""
    several = len(start) > 1 and sum(t.numel() for t in problem.observed) <= LARGE_MODEL  # vmap serves these
    if _scale(problem) is None or problem.training.batch_norm == "train" or several:
        return None
    if problem.embedding is not None or not start.inputs.is_floating_point():
        return None
    slow, one = update_matching(problem, distance, weights), start.restart(0)
    try:
        expected = slow(one)
        for step in _STEPS:
            fast = _Directional(problem, distance, weights, step=step)
            value, gradient = fast.evaluate(one.inputs[0], one.labels[0])
            if gradient is not None and _agrees(Evaluation(value, (gradient,)), expected):
                return _with_double_backprop_where_digits_lack(fast, slow)
    except (RuntimeError, NotImplementedError):
        return None
    return None


def _scale(problem: Problem) -> float | None:
    """What the gradient is multiplied by in the update: -lr in a single plain local step; None in several."""
    if problem.one_gradient:
        return 1.0
    training = problem.training
    single = problem.clients == 1 and problem.local_steps == 1 and training.plain
    return -training.lr if single and not training.weight_decay else None


def _agrees(found: Evaluation, expected: Evaluation) -> bool:
    wanted = expected.gradients[0][0]
    error = (found.gradients[0] - wanted).norm()
    same = torch.allclose(found.values, expected.values[0], rtol=1e-3, atol=1e-6)
    return same and bool(error <= _AGREEMENT * wanted.norm())


def _with_double_backprop_where_digits_lack(fast: _Directional, slow: Objective) -> Objective:
    def objective(candidates: Candidates) -> Evaluation:
        values, gradients = [], []
        for number in range(len(candidates)):
            value, gradient = fast.evaluate(candidates.inputs[number], candidates.labels[number])
            if gradient is None:
                again = slow(candidates.restart(number))
                value, gradient = again.values[0], again.gradients[0][0]
            values.append(value)
            gradients.append(gradient)
        return Evaluation(torch.stack(values), (torch.stack(gradients),))

    return objective


class _Directional:
    def __init__(self, problem: Problem, distance: Distance, weights: Weights, *, step: float) -> None:
        received = trainable(problem.model)
        self.problem, self.step, self.scale = problem, step, _scale(problem) or 1.0
        self.weights = [received[name].detach().clone().requires_grad_() for name in problem.names]
        self.length = _length(self.weights)
        self.pull: Pull = pull_of(distance, problem.observed, weights)
        self.epsilon = torch.finfo(self.weights[0].dtype).eps

    def evaluate(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor | None]:
        """The distance of one restart and its gradient; None in its place where rounding leaves no digits."""
        x, pieces = inputs.detach().requires_grad_(), _Pieces()
        with pieces:
            loss = loss_of(self.problem, self.weights, x, labels)
        found = torch.autograd.grad(loss, [x, *self.weights], allow_unused=True)
        before = found[0]
        filled = _apart(self.weights, found[1:])
        if self.scale != 1:
            filled = [g.mul_(self.scale) for g in filled]
        value, direction = self.pull(filled)
        length = _length(direction)
        if before is None or not 0 < length < math.inf:
            return value.detach(), None
        step = self.step * math.sqrt(self.epsilon) * self.length / length
        moved = [torch.add(w.detach(), u, alpha=step) for w, u in zip(self.weights, direction, strict=True)]
        pieces.next = 0
        with pieces:
            loss = loss_of(self.problem, moved, x, labels)
        difference = torch.autograd.grad(loss, x)[0] - before
        if not difference.norm() > _DIGITS * self.epsilon * before.norm():
            return value.detach(), None
        return value.detach(), difference * (self.scale / step)


def _apart(weights: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> list[Tensor]:
    """Gradients that may be written over: zeros where there are none, and no two in one memory."""
    found: list[Tensor] = []
    taken: set[int] = set()
    for weight, gradient in zip(weights, gradients, strict=True):
        own = torch.zeros_like(weight) if gradient is None else gradient
        if own.data_ptr() in taken or not own.is_contiguous():
            own = own.clone(memory_format=torch.contiguous_format)
        taken.add(own.data_ptr())
        found.append(own)
    return found


def _length(tensors: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float(torch.dot(t.detach().flatten(), t.detach().flatten())) for t in tensors))
