"""Gradient matching for any network and batch without a second backward pass: a difference of two gradients.

With g(x) = dL/dw and u = dD/dg, the gradient of the distance is (dg/dx)^T u. Second derivatives are
symmetric, so this is how dL/dx changes when the weights move along u (Pearlmutter 1994, eq. 2):

    dD/dx = [dL/dx (x, w + e u) - dL/dx (x, w)] / e

dL/dx (x, w) comes with the gradient itself, and the other needs no gradients of weights: five products of
matrices a layer in place of seven, none of them differentiated. The distance itself is exact.

Local steps w' = w - r g(x, w) are gone back through one by one. With l' = dD/dw' (at the last step: u) one
difference along l' gives both what a step's examples get and what the step before it is asked for:

    dD/dx = -r [dL/dx (x, w + e l') - dL/dx (x, w)] / e,    l = l' - r [g(x, w + e l') - g(x, w)] / e
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from seepage.attacks.inversion.distances import Distance, Pull, Weights, pull_of
from seepage.attacks.inversion.memory import keep_freed_memory
from seepage.attacks.inversion.objective import (
    LARGE_MODEL,
    Candidates,
    Evaluation,
    Objective,
    update_matching,
)
from seepage.attacks.inversion.pieces import Pieces
from seepage.attacks.inversion.problem import Problem
from seepage.attacks.inversion.simulate import loss_of
from seepage.protocol import local_batches, trainable

_STEPS = (0.1, 0.03, 0.01, 0.003)
"""e * |u| / |w| over the square root of the type's epsilon: the first that agrees at the start is taken. A
deep network wants a smaller one. Tested: test_the_step_of_the_difference_lies_on_a_plateau."""
_FAR = 3.0
"""One more for weighted layers, where u may lie in a few weights (see `positions`), which change dL/dx by too
few digits otherwise. On a vision transformer 1, 3 and 10 agree at the start, and 3 and 10 at every step
(seeds 239001-2). Tested: test_weighted_positions_need_no_double_backprop."""
_AGREEMENT = 0.01
"""Largest relative error at the start, by double backprop: a search by signs or by Adam does not notice. No
plateau test yet."""
_DIGITS = 1e3
"""Times epsilon that dL/dx must change by, relatively; otherwise double backprop takes this step. Derived:
dL/dx is rounded to some ten epsilons, which is a hundredth of that."""
_KEPT = 2**25
"""Values of all local steps' weights and gradients that are kept at once. Cost: 128 MB; beyond it steps are
played again, see `simulate`."""
_ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Fused kernels too: only first derivatives are taken."""


def directional_matching(
    problem: Problem, distance: Distance, weights: Weights, start: Candidates
) -> Objective | None:
    """The objective by a difference of gradients, or None where it does not hold or does not agree."""
    several = len(start) > 1 and sum(t.numel() for t in problem.observed) <= LARGE_MODEL  # vmap serves these
    if not _sums_gradients(problem) or problem.training.batch_norm == "train" or several:
        return None
    if problem.embedding is not None or not start.inputs.is_floating_point():
        return None
    keep_freed_memory()
    slow, one = update_matching(problem, distance, weights), start.restart(0)
    try:
        expected = slow(one)
        for step in _STEPS if weights is None else (*_STEPS, _FAR):
            fast = _Directional(problem, distance, weights, step=step)
            value, gradient = fast.evaluate(one.inputs[0], one.labels[0])
            if gradient is not None and _agrees(Evaluation(value, (gradient,)), expected):
                return _with_double_backprop_where_digits_lack(fast, slow)
    except (RuntimeError, NotImplementedError):
        return None
    return None


def _sums_gradients(problem: Problem) -> bool:
    """The update is one gradient, or the sum of one client's by plain steps of which all can be kept."""
    if problem.one_gradient:
        return True
    training, steps = problem.training, problem.local_steps
    plain = training.plain and not training.weight_decay and (steps == 1 or not training.momentum)
    kept = 2 * steps * sum(t.numel() for t in problem.observed)
    return problem.clients == 1 and plain and (steps == 1 or kept <= _KEPT)


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


class _Packing:
    """Weights as the search handles them: one vector, or one tensor each where the model is large or layers
    weigh differently. Kernels lie with their channels last, as convolutions on a CPU like them best."""

    def __init__(self, tensors: Sequence[Tensor], weights: Weights) -> None:
        self.laid = [_laid(t).shape for t in tensors]
        self.sizes = [t.numel() for t in tensors]
        self.joined = weights is None and sum(self.sizes) <= LARGE_MODEL

    def pack(self, tensors: Sequence[Tensor | None], like: Sequence[Tensor]) -> list[Tensor]:
        """Copies that may be written over: zeros in place of None, and no two in one memory."""
        laid = [_laid(torch.zeros_like(w) if t is None else t) for t, w in zip(tensors, like, strict=True)]
        if self.joined:
            return [torch.cat([t.reshape(-1) for t in laid])]
        taken: set[int] = set()
        for place, tensor in enumerate(laid):
            own = tensor.contiguous()
            laid[place] = own.clone() if own.data_ptr() in taken else own
            taken.add(own.data_ptr())
        return laid

    def unpack(self, packed: Sequence[Tensor]) -> list[Tensor]:
        """For the model: views."""
        parts = packed[0].split(self.sizes) if self.joined else packed
        whole = [part.view(shape) for part, shape in zip(parts, self.laid, strict=True)]
        return [t.permute(0, 3, 1, 2) if t.dim() == 4 else t for t in whole]


def _laid(tensor: Tensor) -> Tensor:
    return tensor.permute(0, 2, 3, 1) if tensor.dim() == 4 else tensor


@dataclass(frozen=True)
class _Step:
    """One local step on the way there, kept for the way back."""

    weights: list[Tensor]
    gradient: list[Tensor]
    index: Tensor | None
    """Its examples; None: all."""
    inputs: Tensor
    labels: Tensor
    pieces: Pieces
    slope: Tensor | None
    """dL/dx."""


class _Directional:
    def __init__(self, problem: Problem, distance: Distance, weights: Weights, *, step: float) -> None:
        self.problem, self.step = problem, step
        received = trainable(problem.model)
        own = [received[name].detach() for name in problem.names]
        self.packing = _Packing(own, weights)
        self.received = [t.clone() for t in self.packing.pack(own, own)]
        self.length = _length(self.received)
        observed = self.packing.pack(problem.observed, own)
        self.pull: Pull = pull_of(distance, [t.clone() for t in observed], weights)
        self.epsilon = torch.finfo(own[0].dtype).eps
        self.rate = -1.0 if problem.one_gradient else problem.training.lr
        batches = [] if problem.one_gradient else local_batches(problem.num_examples, problem.training)
        self.batches: Sequence[Tensor | None] = batches if len(batches) > 1 else [None]
        self.kinks = True
        """Whether the network has any: known after the first pass."""

    def evaluate(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor | None]:
        """The distance of one restart and its gradient; None in its place where rounding leaves no digits."""
        with sdpa_kernel(_ATTENTION):
            trail = self._there(inputs.detach(), labels)
            if len(trail) > 1:
                simulated = [
                    torch.stack(each).sum(dim=0) for each in zip(*(s.gradient for s in trail), strict=True)
                ]
            else:
                simulated = trail[0].gradient
            if self.rate != -1.0:
                simulated = [g.mul_(-self.rate) for g in simulated]
            value, pull = self.pull(simulated)
            return value.detach(), self._back(trail, pull, torch.zeros_like(inputs))

    def _there(self, inputs: Tensor, labels: Tensor) -> list[_Step]:
        weights, trail = self.received, list[_Step]()
        for number, index in enumerate(self.batches):
            x, y = (inputs, labels) if index is None else (inputs[index], labels[index])
            if x.dim() == 4:
                x = x.contiguous(memory_format=torch.channels_last)
            pieces = Pieces()
            slope, gradient = self._gradients(weights, x, y, pieces, of_weights=True)
            self.kinks = bool(pieces.kept)
            trail.append(_Step(weights, gradient, index, x, y, pieces, slope))
            if number + 1 < len(self.batches):
                weights = [torch.add(w, g, alpha=-self.rate) for w, g in zip(weights, gradient, strict=True)]
        return trail

    def _back(self, trail: list[_Step], pull: Sequence[Tensor], total: Tensor) -> Tensor | None:
        for number, step in reversed(list(enumerate(trail))):
            length = _length(pull)
            if step.slope is None or not 0 < length < math.inf:
                return None
            far = self.step * math.sqrt(self.epsilon) * self.length / length
            moved = [torch.add(w, u, alpha=far) for w, u in zip(step.weights, pull, strict=True)]
            slope, gradient = self._gradients(
                moved, step.inputs, step.labels, step.pieces.again(), of_weights=number > 0
            )
            assert slope is not None
            difference = slope - step.slope
            if not difference.norm() > _DIGITS * self.epsilon * step.slope.norm():
                return None
            difference.mul_(-self.rate / far)
            total = (
                total.add_(difference) if step.index is None else total.index_add_(0, step.index, difference)
            )
            if number:
                for u, new, old in zip(pull, gradient, step.gradient, strict=True):
                    u.add_(new.sub_(old), alpha=-self.rate / far)
        return total

    def _gradients(
        self, packed: Sequence[Tensor], inputs: Tensor, labels: Tensor, pieces: Pieces, *, of_weights: bool
    ) -> tuple[Tensor | None, list[Tensor]]:
        """dL/dx, None where the loss does not depend on x, and dL/dw, packed, where asked for."""
        weights, x = self.packing.unpack(packed), inputs.detach().requires_grad_()
        if of_weights:
            weights = [w.detach().requires_grad_() for w in weights]
        with pieces if self.kinks else nullcontext():
            loss = loss_of(self.problem, weights, x, labels)
        found = torch.autograd.grad(loss, [x, *weights] if of_weights else [x], allow_unused=True)
        return found[0], self.packing.pack(found[1:], weights) if of_weights else []


def _length(tensors: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float(torch.dot(t.detach().flatten(), t.detach().flatten())) for t in tensors))
