"""L-BFGS (Zhu et al. 2019): restarts one after the other, each keeping the candidate of lowest objective."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from seepage.attacks.inversion.objective import Candidates, Objective
from seepage.attacks.inversion.search import Best, Search, Solution, Solver
from seepage.core.checkpoint import State
from seepage.core.progress import Clock

_CHUNK = 10
"""L-BFGS iterations between two looks at the clock. Cost: torch evaluates once more at the start of each
chunk."""


class _Descent:
    """Where L-BFGS stands with one restart."""

    def __init__(self, objective: Objective, start: Candidates, *, step_size: float, history: int) -> None:
        self.step, self.stopped = 0, ""
        self.best = Best(start)
        self._objective = objective
        self._free = [tensor.detach().clone().requires_grad_() for tensor in start.free]
        self.current = start.moved(self._free)
        self._optimiser = torch.optim.LBFGS(
            self._free,
            lr=step_size,
            max_iter=_CHUNK,
            max_eval=10 * _CHUNK,
            history_size=history,
            # torch's own tolerances are absolute, and gradients of a matched update are tiny by nature
            tolerance_grad=0.0,
            tolerance_change=0.0,
            line_search_fn="strong_wolfe",
        )

    def _closure(self) -> Tensor:
        found = self._objective(self.current)
        self.best.offer(self.current, found.values)
        for tensor, gradient in zip(self._free, found.gradients, strict=True):
            tensor.grad = gradient
        return found.values.sum()

    def chunk(self, steps: int) -> None:
        self._optimiser.param_groups[0]["max_iter"] = min(_CHUNK, steps - self.step)
        self._optimiser.step(self._closure)
        self.step = min(steps, self.step + _CHUNK)

    def forget(self) -> None:
        """The curvature is of no use to a restart that is done."""
        self._optimiser.state.clear()

    @property
    def finite(self) -> bool:
        return all(bool(tensor.isfinite().all()) for tensor in self._free)

    def state(self) -> State:
        # torch keeps all of it, curvature pairs included, with the first parameter
        return {
            "step": self.step,
            "stopped": self.stopped,
            "free": self._free,
            "memory": dict(self._optimiser.state.get(self._free[0], {})),
            "best": self.best.state(),
        }

    def restore(self, state: State) -> None:
        self.step, self.stopped = int(state["step"]), str(state["stopped"])
        with torch.no_grad():
            for tensor, kept in zip(self._free, state["free"], strict=True):
                tensor.copy_(kept)
        memory: dict[str, Any] = state["memory"]
        device = self._free[0].device
        self._optimiser.state[self._free[0]] = {name: _moved(kept, device) for name, kept in memory.items()}
        self.best.restore(state["best"])


def _moved(kept: Any, device: torch.device) -> Any:
    if isinstance(kept, list):
        return [_moved(part, device) for part in kept]
    return kept.to(device) if isinstance(kept, Tensor) else kept


def lbfgs(*, steps: int, step_size: float = 1.0, history: int = 100, patience: int = 3) -> Solver:
    """L-BFGS with a strong Wolfe line search (Zhu et al. 2019 use L-BFGS), each restart by itself.

    Restarts must not share a curvature estimate. The box is applied to the result only: a projection
    inside the search would spoil the estimate. `patience`: chunks of iterations without a gain.
    """
    settings = {
        "solver": "lbfgs",
        "steps": steps,
        "step_size": step_size,
        "history": history,
        "patience": patience,
    }

    def descend(descent: _Descent, total: int, clock: Clock) -> Iterator[None]:
        """A chunk at a time."""
        while descent.step < total and not descent.stopped:
            descent.chunk(total)
            clock.report(
                step=descent.step,
                steps=total,
                objective=descent.best.lowest,
                inputs=descent.current.inputs,
            )
            if descent.finite:
                descent.stopped = descent.best.stop(clock, patience, settled=True)
            else:
                descent.stopped = "divergence"
            yield

    def solve(objective: Objective, start: Candidates, search: Search) -> Solution:
        kept = search.resume(settings)
        if kept is None:
            kept = {
                "restarts": [],
                "total": search.clock.steps_that_fit([(1.0, partial(objective, start))], steps),
            }
        total, descents = int(kept["total"]), list[_Descent]()

        def state() -> State:
            return search.state({"total": total, "restarts": [descent.state() for descent in descents]})

        for r in range(len(start)):
            descent = _Descent(objective, start.restart(r), step_size=step_size, history=history)
            if r < len(kept["restarts"]):
                descent.restore(kept["restarts"][r])
            descents.append(descent)
            for _ in descend(descent, total, search.clock.share(len(start) - r)):
                search.checkpoint.offer(state)
            descent.forget()
        search.checkpoint.finish(state)
        return _merged(start, descents, search)

    return solve


def _merged(start: Candidates, descents: list[_Descent], search: Search) -> Solution:
    found = [d.best.solution(d.step, d.stopped, origin=(r,)) for r, d in enumerate(descents)]
    merged = [torch.cat(parts) for parts in zip(*(s.candidates.free for s in found), strict=True)]
    merged[0] = search.project(merged[0])
    return Solution(
        candidates=start.moved(merged),
        values=torch.cat([s.values for s in found]),
        start_values=torch.cat([s.start_values for s in found]),
        origin=tuple(range(len(found))),
        steps=max(s.steps for s in found),
        stopped=found[-1].stopped,
    )
