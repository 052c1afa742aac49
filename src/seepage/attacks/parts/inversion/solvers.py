"""How candidates are moved: Adam, plain or on the gradient's sign, and L-BFGS.

A solver sees the objective and nothing else. L-BFGS keeps the candidate with the lowest objective, Adam the
last one, unless its objective has run away.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.parts.inversion.objective import Candidates, Objective
from seepage.attacks.parts.progress import Clock

Schedule = Callable[[float], float]
"""Share of the steps done, in [0, 1), to a factor of the step size."""

_SETTLED = 0.1
"""A plateau counts only once the step size has fallen to this share: before, decay still lowers it."""
_GAIN = 1e-3
"""Relative improvement of the best objective below which the search stands still."""
_CHUNK = 10
"""L-BFGS iterations between two looks at the clock; torch evaluates once more at the start of each chunk."""
_RUN_AWAY = 2.0
"""Adam's last candidate is dropped for its best one where its objective is this many times as high."""
_SOLVED = 1e-14
"""An objective relative to the update's length at which only rounding is left."""


def constant(done: float) -> float:
    return 1.0


def step_decay(done: float) -> float:
    """A tenth at 3/8, 5/8 and 7/8 of the steps (Geiping et al. 2020).

    >>> [round(step_decay(share), 4) for share in (0.0, 0.375, 0.625, 0.875)]
    [1.0, 0.1, 0.01, 0.001]
    """
    return float(0.1 ** sum(done >= share for share in (3 / 8, 5 / 8, 7 / 8)))


def cosine_decay(done: float) -> float:
    """Half a cosine down to 0: reaches a given quality on a ConvNet in a third of the time."""
    return 0.5 * (1 + math.cos(math.pi * done))


SCHEDULES: dict[str, Schedule] = {
    "constant": constant,
    "step_decay": step_decay,
    "cosine_decay": cosine_decay,
}


@dataclass(frozen=True, kw_only=True)
class Search:
    """What a solver needs besides the objective."""

    project: Callable[[Tensor], Tensor]
    """Into the box of possible inputs."""
    unit: float
    """Inputs move by step sizes in this unit."""
    clock: Clock
    generator: torch.Generator


@dataclass(frozen=True, kw_only=True)
class Solution:
    """The best candidates of every restart, by objective."""

    candidates: Candidates
    values: Tensor
    """(R,)"""
    start_values: Tensor
    """(R,) before the first step."""
    steps: int
    stopped: str
    """Why before the last step: plateau, budget, solved, or nothing."""


Solver = Callable[[Objective, Candidates, Search], Solution]


class _Best:
    """The lowest objective each restart has had. A NaN is never lower."""

    def __init__(self, start: Candidates) -> None:
        self.candidates = start
        self.values = torch.full((len(start),), torch.inf, device=start.inputs.device)
        self.start_values: Tensor | None = None
        self._mark, self._since = torch.inf, 0

    def offer(self, candidates: Candidates, values: Tensor) -> None:
        if self.start_values is None:
            self.start_values = values
        better = values < self.values
        self.values = torch.where(better, values, self.values.to(values))
        self._keep(better, candidates)

    @property
    def lowest(self) -> float:
        return float(self.values.min())

    def stands_still(self, patience: int) -> bool:
        """The restarts' objectives together have not fallen for `patience` offers."""
        now = float(self.values.sum())
        if now < self._mark * (1 - _GAIN):
            self._mark, self._since = now, 0
        else:
            self._since += 1
        return self._since >= patience

    def prefer(self, last: Candidates, values: Tensor) -> None:
        """Take the last candidates in place of the best ones, where they are nearly as good.

        Between the kinks of a ReLU network the objective jumps, and its lowest value is mostly a lucky dip
        on the way; small steps at the end average such luck out. On an untrained ConvNet the last candidate
        is about 1 dB nearer to the truth than the lowest.
        """
        near = values <= _RUN_AWAY * self.values.clamp_min(0)
        self.values = torch.where(near, values, self.values)
        self._keep(near, last)

    def _keep(self, chosen: Tensor, candidates: Candidates) -> None:
        kept = [
            torch.where(chosen.reshape(-1, *(1,) * (new.dim() - 1)), new.detach(), old)
            for new, old in zip(candidates.free, self.candidates.free, strict=True)
        ]
        self.candidates = self.candidates.moved(kept)

    def solution(self, steps: int, stopped: str) -> Solution:
        assert self.start_values is not None
        return Solution(
            candidates=self.candidates,
            values=self.values,
            start_values=self.start_values,
            steps=steps,
            stopped=stopped,
        )


def adam(
    *,
    steps: int,
    step_size: float = 0.1,
    signed: bool = False,
    schedule: Schedule = cosine_decay,
    warm_up: int = 0,
    noise: float = 0.0,
) -> Solver:
    """Adam inside the box; `signed` feeds it the sign of the gradient (Geiping et al. 2020, Sec. 4).

    noise: deviation of a normal disturbance of each step, in step sizes (Yin et al. 2021, eq. 13).
    """

    def solve(objective: Objective, start: Candidates, search: Search) -> Solution:
        total = search.clock.steps_that_fit(lambda: objective(start), steps)
        free = [tensor.detach().clone() for tensor in start.free]
        current = start.moved(free)
        optimiser = torch.optim.Adam([{"params": [tensor]} for tensor in free], lr=step_size)
        units = [search.unit, 1.0]  # labels are logits
        best, patience = _Best(start), max(50, total // 10)
        for step in range(total):
            found = objective(current)
            best.offer(current, found.values)
            search.clock.report(step=step, steps=total, objective=best.lowest, inputs=current.inputs)
            factor = schedule(step / total) * min(1.0, (step + 1) / (warm_up + 1))
            if stopped := _stop(best, search.clock, patience, settled=factor <= _SETTLED):
                if stopped == "plateau":
                    best.prefer(current, found.values)
                return best.solution(step, stopped)
            for tensor, gradient in zip(free, found.gradients, strict=True):
                tensor.grad = gradient
            if signed:
                free[0].grad = found.gradients[0].sign()
            for group, unit in zip(optimiser.param_groups, units, strict=False):
                group["lr"] = step_size * factor * unit
            optimiser.step()
            if noise:
                drawn = torch.randn(free[0].shape, generator=search.generator).to(free[0])
                free[0].add_(drawn, alpha=noise * step_size * factor * search.unit)
            free[0].copy_(search.project(free[0]))
        values = objective(current).values
        best.offer(current, values)
        best.prefer(current, values)
        return best.solution(total, "")

    return solve


def _stop(best: _Best, clock: Clock, patience: int, *, settled: bool) -> str:
    if clock.expired:
        return "budget"
    if float(best.values.max()) <= _SOLVED:
        return "solved"
    return "plateau" if settled and best.stands_still(patience) else ""


def lbfgs(*, steps: int, step_size: float = 1.0, history: int = 100, patience: int = 3) -> Solver:
    """L-BFGS with a strong Wolfe line search (Zhu et al. 2019 use L-BFGS), each restart by itself.

    Restarts must not share a curvature estimate. The box is applied to the result only: a projection
    inside the search would spoil the estimate. `patience`: chunks of iterations without a gain.
    """

    def solve(objective: Objective, start: Candidates, search: Search) -> Solution:
        total = search.clock.steps_that_fit(lambda: objective(start), steps)
        found = []
        for r in range(len(start)):
            clock = search.clock.share(len(start) - r)
            found.append(_lbfgs_one(objective, start.restart(r), clock, total, step_size, history, patience))
        merged = [torch.cat(parts) for parts in zip(*(s.candidates.free for s in found), strict=True)]
        merged[0] = search.project(merged[0])
        return Solution(
            candidates=start.moved(merged),
            values=torch.cat([s.values for s in found]),
            start_values=torch.cat([s.start_values for s in found]),
            steps=max(s.steps for s in found),
            stopped=found[-1].stopped,
        )

    return solve


def _lbfgs_one(
    objective: Objective,
    start: Candidates,
    clock: Clock,
    steps: int,
    step_size: float,
    history: int,
    patience: int,
) -> Solution:
    free = [tensor.detach().clone().requires_grad_() for tensor in start.free]
    current, best = start.moved(free), _Best(start)
    optimiser = torch.optim.LBFGS(
        free,
        lr=step_size,
        max_iter=_CHUNK,
        max_eval=10 * _CHUNK,
        history_size=history,
        # torch's own tolerances are absolute, and gradients of a matched update are tiny by nature
        tolerance_grad=0.0,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        found = objective(current)
        best.offer(current, found.values)
        for tensor, gradient in zip(free, found.gradients, strict=True):
            tensor.grad = gradient
        return found.values.sum()

    for step in range(0, steps, _CHUNK):
        optimiser.param_groups[0]["max_iter"] = min(_CHUNK, steps - step)
        optimiser.step(closure)
        done = min(steps, step + _CHUNK)
        clock.report(step=done, steps=steps, objective=best.lowest, inputs=current.inputs)
        if not all(tensor.isfinite().all() for tensor in free):
            return best.solution(done, "divergence")
        if stopped := _stop(best, clock, patience, settled=True):
            return best.solution(done, stopped)
    return best.solution(steps, "")
