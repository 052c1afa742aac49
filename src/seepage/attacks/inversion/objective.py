"""The objective of an inversion: how well candidates explain the update, plus what is believed beforehand.

`Objective` is the seam: candidates in, values and gradients out, for all restarts at once. How the
gradient comes about (double backprop here, something faster elsewhere) is nobody else's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from seepage.attacks.inversion.distances import Distance, Weights
from seepage.attacks.inversion.problem import Problem
from seepage.attacks.inversion.simulate import simulated_update

LARGE_MODEL = 1_000_000
"""Parameters from which on vmapped restarts gain nothing on a CPU. Cost: measured (ConvNet64: 8.5x one;
LeNet: 2.4x)."""

Weighing = Literal["fixed", "relative", "balanced"]
"""How the prior P weighs beside the match D, whose scale differs by orders of magnitude between networks.
fixed: D + P. relative: D (1 + P), so that an exact match is not moved away from. balanced: by the lengths of
their gradients, see `BALANCE`; a direction to go in, and no function that it is the gradient of."""

BALANCE, FADING = 0.6, 0.15
"""Length of a balanced prior's gradient, in those of the match: BALANCE (D / D at the start)^FADING. What
suits networks differs by a factor of 1000 in a fixed or relative weight, and by 3 in this share. Found on
eight networks with CIFAR-10 seeds 60 to 65. Tested: test_the_balance_lies_on_a_plateau."""

Prior = Callable[[Tensor], Tensor]
"""(R, n, *shape) candidates to (R,) penalties, already weighted."""


@dataclass(frozen=True)
class Candidates:
    """R restarts, each a guess of the whole batch."""

    inputs: Tensor
    """(R, n, *shape) in model units."""
    labels: Tensor
    """(R, n) int64: held fixed. (R, n, classes) floating: logits of soft labels, searched as well."""

    @property
    def free(self) -> tuple[Tensor, ...]:
        """What the solver moves."""
        return (self.inputs, self.labels) if self.labels.is_floating_point() else (self.inputs,)

    def moved(self, free: Sequence[Tensor]) -> Candidates:
        return Candidates(free[0], free[1] if len(free) > 1 else self.labels)

    def restart(self, index: int) -> Candidates:
        """One of them, still with a leading dimension."""
        return Candidates(self.inputs[index : index + 1], self.labels[index : index + 1])

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True)
class Evaluation:
    """(R,) values, and the gradient with respect to each of `Candidates.free`."""

    values: Tensor
    gradients: tuple[Tensor, ...]


Objective = Callable[[Candidates], Evaluation]

OneRestart = Callable[[Tensor, Tensor], Tensor]
"""(inputs (n, *shape), labels) of one restart to a scalar."""


def differentiated(function: Callable[[Candidates], Tensor]) -> Objective:
    """An objective from a function of candidates to (R,) values, by autograd."""

    def objective(candidates: Candidates) -> Evaluation:
        free = [tensor.detach().requires_grad_() for tensor in candidates.free]
        values = function(candidates.moved(free))
        if not values.requires_grad:  # the model passes no gradient on to its input
            return Evaluation(values.detach(), tuple(torch.zeros_like(f) for f in free))
        grads = torch.autograd.grad(values.sum(), free, allow_unused=True)
        filled = (torch.zeros_like(f) if g is None else g for f, g in zip(free, grads, strict=True))
        return Evaluation(values.detach(), tuple(filled))

    return objective


def restarts_in_turn(function: OneRestart) -> Objective:
    """Restarts one after the other: the memory of one, and every model works."""
    single = differentiated(lambda c: function(c.inputs[0], c.labels[0]).unsqueeze(0))

    def objective(candidates: Candidates) -> Evaluation:
        found = [single(candidates.restart(r)) for r in range(len(candidates))]
        parts = zip(*(e.gradients for e in found), strict=True)
        return Evaluation(torch.cat([e.values for e in found]), tuple(torch.cat(p) for p in parts))

    return objective


def restarts_at_once(function: OneRestart) -> Objective:
    """All restarts in one pass by vmap. `function` must be free of saved-tensor hooks and side effects."""
    batched = torch.func.vmap(function)
    return differentiated(lambda c: batched(c.inputs, c.labels))


def update_matching(
    problem: Problem, distance: Distance, weights: Weights = None, *, vectorised: bool = False
) -> Objective:
    """Distance between the update that candidates lead to and the observed one, by double backprop."""

    def one(inputs: Tensor, labels: Tensor) -> Tensor:
        update = simulated_update(problem, inputs, labels, functional=vectorised)
        return distance(update, problem.observed, weights)

    return restarts_at_once(one) if vectorised else restarts_in_turn(one)


def fastest_matching(
    problem: Problem, distance: Distance, weights: Weights, start: Candidates
) -> tuple[Objective, bool]:
    """Vmapped restarts where there are several and the model allows it; one after the other otherwise."""
    looped = update_matching(problem, distance, weights)
    # A large model keeps a CPU busy with one restart already. (By size and not by the clock: the choice
    # moves the last bits, and the same audit must give the same result.)
    busy = start.inputs.device.type == "cpu" and sum(t.numel() for t in problem.observed) > LARGE_MODEL
    if len(start) == 1 or busy or problem.local_steps > 1:  # replay does not go with vmap
        return looped, False
    batched = update_matching(problem, distance, weights, vectorised=True)
    try:
        values = batched(start).values
    except RuntimeError:  # an operation without a batching rule, or one that changes a buffer in place
        return looped, False
    expected = looped(start.restart(0)).values[0]
    agrees = torch.allclose(values[0], expected, rtol=1e-3, atol=1e-6)
    return (batched, True) if agrees else (looped, False)


def sum_of(
    matching: Objective, priors: Sequence[Prior], *, weighing: Weighing = "fixed", begun: float = 1.0
) -> Objective:
    """The match and the priors together; priors are cheap and see all restarts at once.

    begun: the match at the start, which "balanced" compares with.
    """
    if not priors:
        return matching
    believed = differentiated(lambda c: torch.stack([prior(c.inputs) for prior in priors]).sum(dim=0))

    def objective(candidates: Candidates) -> Evaluation:
        match, belief = matching(candidates), believed(candidates)
        ones = torch.ones_like(match.values)
        a, b, values = ones, ones, match.values + belief.values
        if weighing == "relative":
            a, b = 1 + belief.values, match.values.clamp_min(0)
            values = match.values + b * belief.values
        elif weighing == "balanced":
            b, values = _balance(match, belief, begun), match.values
        gradients = tuple(
            _per_restart(a, g) * g + _per_restart(b, h) * h
            for g, h in zip(match.gradients, belief.gradients, strict=True)
        )
        return Evaluation(values, gradients)

    return objective


def _balance(match: Evaluation, belief: Evaluation, begun: float) -> Tensor:
    """(R,) what the prior's gradient is multiplied by to have its share of the match's length."""
    pull, push = (e.gradients[0].flatten(1).norm(dim=1) for e in (match, belief))
    left = (match.values.clamp_min(0) / max(begun, torch.finfo(pull.dtype).tiny)).clamp(max=1.0)
    factor: Tensor = BALANCE * left.pow(FADING) * pull / push.clamp_min(torch.finfo(push.dtype).tiny)
    return factor


def _per_restart(factors: Tensor, like: Tensor) -> Tensor:
    """(R,) to (R, 1, 1, ...)."""
    return factors.reshape(-1, *(1,) * (like.dim() - 1))
