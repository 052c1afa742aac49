"""Adam, plain or on the gradient's sign, and its schedules of step sizes.

A solver sees the objective and nothing else. Adam returns its last candidate, unless the objective ran away.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from seepage.attacks.inversion.halving import Halving, expected_work
from seepage.attacks.inversion.objective import Candidates, Evaluation, Objective
from seepage.attacks.inversion.search import Best, Search, Solution, Solver, subset
from seepage.core.checkpoint import State

Schedule = Callable[[float], float]
"""Share of the steps done, in [0, 1), to a factor of the step size."""

_SETTLED = 0.1
"""A plateau counts only once the step size has fallen to this share: before, decay still lowers it. No
plateau test yet."""


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


class _Walk:
    """Where Adam stands with the restarts that are still followed."""

    def __init__(self, start: Candidates, total: int, *, halving: bool) -> None:
        self.total, self.step = total, 0
        self.begun = start.inputs.shape
        self.best, self.halving = Best(start), Halving(len(start), total, on=halving)
        self._place(start, [tensor.detach().clone() for tensor in start.free], [])

    def _place(self, like: Candidates, free: list[Tensor], moments: list[dict[str, Tensor]]) -> None:
        self.free, self.current = free, like.moved(free)
        self.optimiser = torch.optim.Adam([{"params": [tensor]} for tensor in free])
        for tensor, state in zip(free, moments, strict=False):
            self.optimiser.state[tensor] = state

    @property
    def _moments(self) -> list[dict[str, Tensor]]:
        return [self.optimiser.state[tensor] for tensor in self.free if tensor in self.optimiser.state]

    def halve(self, found: Evaluation) -> Evaluation:
        """Go on with the better half of the restarts, if it is time; what was found belongs to all so far."""
        index = self.halving(self.step, found.values)
        if index is None:
            return found
        moments = [
            {name: t if t.dim() == 0 else t[index] for name, t in state.items()} for state in self._moments
        ]
        self._place(subset(self.current, index), [tensor[index] for tensor in self.free], moments)
        self.best.keep(index)
        return Evaluation(found.values[index], tuple(gradient[index] for gradient in found.gradients))

    def disturbance(self, generator: torch.Generator) -> Tensor:
        """Normal values, drawn for dropped restarts too: a survivor gets the same ones as without a drop."""
        drawn = torch.randn(self.begun, generator=generator)
        return drawn[self.halving.alive].to(self.free[0])

    def state(self) -> State:
        return {
            "step": self.step,
            "total": self.total,
            "free": self.free,
            "moments": self._moments,
            "best": self.best.state(),
            "halving": self.halving.state(),
        }

    def restore(self, start: Candidates, state: State) -> None:
        device = start.inputs.device
        self.step = int(state["step"])
        self.halving.restore(state["halving"], device)
        alive = subset(start, torch.tensor(self.halving.alive, device=device))
        moments = [
            {name: t if t.dim() == 0 else t.to(device) for name, t in entry.items()}
            for entry in state["moments"]
        ]
        self._place(alive, [tensor.to(device) for tensor in state["free"]], moments)
        self.best.candidates = alive
        self.best.restore(state["best"])

    def solution(self, stopped: str) -> Solution:
        return self.best.solution(
            self.step, stopped, origin=tuple(self.halving.alive), notes=self.halving.notes
        )


@dataclass(frozen=True, kw_only=True)
class _Rule:
    """How far a step goes."""

    step_size: float
    signed: bool
    schedule: Schedule
    warm_up: int
    noise: float

    def factor(self, walk: _Walk) -> float:
        return self.schedule(walk.step / walk.total) * min(1.0, (walk.step + 1) / (self.warm_up + 1))

    def move(self, walk: _Walk, found: Evaluation, search: Search) -> None:
        free, scale = walk.free, self.step_size * self.factor(walk)
        for tensor, gradient in zip(free, found.gradients, strict=True):
            tensor.grad = gradient
        if self.signed:
            free[0].grad = found.gradients[0].sign()
        units = [search.unit, 1.0]  # labels are logits
        for group, unit in zip(walk.optimiser.param_groups, units, strict=False):
            group["lr"] = scale * unit
        walk.optimiser.step()
        if self.noise:
            free[0].add_(walk.disturbance(search.generator), alpha=self.noise * scale * search.unit)
        free[0].copy_(search.project(free[0]))


def adam(
    *,
    steps: int,
    step_size: float = 0.1,
    signed: bool = False,
    schedule: Schedule = cosine_decay,
    warm_up: int = 0,
    noise: float = 0.0,
    halving: bool = True,
) -> Solver:
    """Adam inside the box; `signed` feeds it the sign of the gradient (Geiping et al. 2020, Sec. 4).

    noise: deviation of a normal disturbance of each step, in step sizes (Yin et al. 2021, eq. 13).
    halving: of four restarts or more, drop the worse half again and again, see `halving`.
    """
    rule = _Rule(step_size=step_size, signed=signed, schedule=schedule, warm_up=warm_up, noise=noise)
    settings = {
        "solver": "adam",
        "steps": steps,
        "step_size": step_size,
        "signed": signed,
        "schedule": schedule.__name__,
        "warm_up": warm_up,
        "noise": noise,
        "halving": halving,
    }

    def begin(objective: Objective, start: Candidates, search: Search) -> _Walk:
        kept = search.resume(settings)
        if kept is None:
            work = [
                (share, partial(objective, subset(start, torch.arange(number))))
                for share, number in expected_work(len(start), on=halving)
            ]
            return _Walk(start, search.clock.steps_that_fit(work, steps), halving=halving)
        walk = _Walk(start, int(kept["total"]), halving=halving)
        walk.restore(start, kept)
        return walk

    def solve(objective: Objective, start: Candidates, search: Search) -> Solution:
        walk = begin(objective, start, search)
        best, patience = walk.best, max(50, walk.total // 10)
        while walk.step < walk.total:
            search.checkpoint.offer(lambda: search.state(walk.state()))
            found = objective(walk.current)
            best.offer(walk.current, found.values)
            search.clock.report(
                step=walk.step, steps=walk.total, objective=best.lowest, inputs=walk.current.inputs
            )
            settled = rule.factor(walk) <= _SETTLED
            if stopped := best.stop(search.clock, patience, settled=settled):
                search.checkpoint.finish(lambda: search.state(walk.state()))
                if stopped == "plateau":
                    best.prefer(walk.current, found.values)
                return walk.solution(stopped)
            rule.move(walk, walk.halve(found), search)
            walk.step += 1
        search.checkpoint.finish(lambda: search.state(walk.state()))
        values = objective(walk.current).values
        best.offer(walk.current, values)
        best.prefer(walk.current, values)
        return walk.solution("")

    return solve
