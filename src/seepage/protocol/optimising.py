"""A local step written out, as those of torch.optim are not differentiable: SGD, Adam and AdamW.

Clipping, accumulated mini-batches, momentum, weight decay and a falling rate are as `local.local_update` has
them, so that a replay of a client's training ends where the client ended.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from seepage.core.types import LocalTraining

Gradient = Callable[[Sequence[Tensor], Tensor, Tensor, bool], tuple[Tensor, ...]]
"""(weights, inputs, labels, differentiable) to the gradient of the loss with respect to the weights."""
State = tuple[Tensor, ...]
Step = Callable[..., State]
"""(number, inputs, labels, *state, differentiable=) to the next state."""
BETAS, EPS = (0.9, 0.999), 1e-8
"""Adam's. Derived: torch.optim's own."""
_CLIP_FLOOR = 1e-6
"""Derived: that of torch.nn.utils.clip_grad_norm_."""


def grouped(batches: Sequence[Tensor], training: LocalTraining) -> list[list[Tensor]]:
    """The mini-batches of each step of the optimiser.

    >>> [len(step) for step in grouped([torch.arange(2)] * 5, LocalTraining(accumulation=2))]
    [2, 2, 1]
    """
    each = training.accumulation
    return [list(batches[i : i + each]) for i in range(0, len(batches), each)]


def rates(training: LocalTraining, steps: int) -> list[float]:
    """The rate of each step of the optimiser, as `local.schedule_of` lets it fall.

    >>> rates(LocalTraining(lr=1.0, schedule="linear"), 4)
    [1.0, 0.75, 0.5, 0.25]
    """
    done = [number / steps for number in range(steps)]
    if training.schedule == "cosine":
        return [training.lr * (1 + math.cos(math.pi * part)) / 2 for part in done]
    return [training.lr * (1 - part if training.schedule == "linear" else 1.0) for part in done]


def local_step(
    gradient: Gradient,
    training: LocalTraining,
    count: int,
    groups: Sequence[Sequence[Tensor]],
    *,
    softness: float = 0.0,
) -> Step:
    """The step that a client takes. A state holds `count` weights, then what the optimiser remembers of each.

    groups: the mini-batches of every step, in order; a step is given the examples of its own, put together.
    softness: of Adam. It moves a weight by little more than the sign of its gradients, whose derivative is
    zero; the root of v + (softness)^2 mean(v) in place of that of v gives small entries a slope.
    """
    sizes, rate = [[len(part) for part in group] for group in groups], rates(training, len(groups))
    moved = _adam(training, count, softness) if training.optimizer != "sgd" else _sgd(training, count)

    def step(number: int, x: Tensor, y: Tensor, *state: Tensor, differentiable: bool = True) -> State:
        parts = zip(x.split(sizes[number]), y.split(sizes[number]), strict=True)
        found = [gradient(state[:count], inputs, labels, differentiable) for inputs, labels in parts]
        grads = found[0]
        if len(found) > 1:
            grads = tuple(torch.stack(each).sum(0) / len(found) for each in zip(*found, strict=True))
        if training.clip_norm is not None:
            grads = _clipped(grads, training.clip_norm)
        return moved(number, rate[number], grads, state)

    return step


def _clipped(grads: Sequence[Tensor], norm: float) -> tuple[Tensor, ...]:
    # the root has no derivative at 0, where nothing is clipped
    length = torch.stack([g.square().sum() for g in grads]).sum().clamp_min(1e-30).sqrt()
    share = (norm / (length + _CLIP_FLOOR)).clamp(max=1.0)
    return tuple(g * share for g in grads)


Moved = Callable[[int, float, Sequence[Tensor], State], State]
"""(number of the step, rate, gradients, state) to the next state."""


def _sgd(training: LocalTraining, count: int) -> Moved:
    def moved(number: int, rate: float, grads: Sequence[Tensor], state: State) -> State:
        weights, velocity = state[:count], state[count:]
        if training.weight_decay:
            grads = tuple(g.add(w, alpha=training.weight_decay) for g, w in zip(grads, weights, strict=True))
        if training.momentum and velocity:
            grads = tuple(v.mul(training.momentum).add(g) for v, g in zip(velocity, grads, strict=True))
        after = tuple(w.add(g, alpha=-rate) for w, g in zip(weights, grads, strict=True))
        return (*after, *grads) if training.momentum else after

    return moved


def _adam(training: LocalTraining, count: int, softness: float) -> Moved:
    """Kingma and Ba 2015, Algorithm 1; AdamW: Loshchilov and Hutter 2019, Algorithm 2."""
    first, second = BETAS
    apart = training.optimizer == "adamw"

    def moved(number: int, rate: float, grads: Sequence[Tensor], state: State) -> State:
        weights = state[:count]
        if training.weight_decay and not apart:
            grads = tuple(g.add(w, alpha=training.weight_decay) for g, w in zip(grads, weights, strict=True))
        zeros = tuple(torch.zeros_like(w) for w in weights)
        means, squares = (state[count : 2 * count], state[2 * count :]) if number else (zeros, zeros)
        means = tuple(m.mul(first).add(g, alpha=1 - first) for m, g in zip(means, grads, strict=True))
        squares = tuple(
            v.mul(second).add(g.square(), alpha=1 - second) for v, g in zip(squares, grads, strict=True)
        )
        shrunk = 1 - rate * training.weight_decay if apart else 1.0
        short, long = 1 - first ** (number + 1), 1 - second ** (number + 1)
        after = [
            w * shrunk - (rate / short) * m / (_root(v / long, softness) + EPS)
            for w, m, v in zip(weights, means, squares, strict=True)
        ]
        return (*after, *means, *squares)

    return moved


def _root(square: Tensor, softness: float) -> Tensor:
    # the root has no derivative at 0, and 1e-15 is nothing beside Adam's own 1e-8
    return (square + softness**2 * square.detach().mean() + 1e-30).sqrt()
