"""Successive halving: many restarts begin, and the worse half is dropped again and again.

Restarts do not influence one another, so a survivor moves as it would have moved alone. Which half is worse
the objective says, never the truth: the median of each restart's last few values, as one value of a search
in large steps is mostly luck.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from seepage.core.checkpoint import State

FEWEST = 4
"""Restarts from which on halving is worth it. Derived: fewer cannot be halved twice."""
_RECENT = 15
"""Values of the objective that a restart is judged by. No plateau test yet."""


def rungs(restarts: int) -> list[tuple[int, float]]:
    """(restarts that go on, share of all steps they go on for), one after the other.

    The shares fall with the root of the number of restarts: twice as many are looked at for 0.7 of the time.
    With equal work for each number the first cut would come at 1/15 of the steps already.

    >>> [(alive, round(share, 2)) for alive, share in rungs(8)]
    [(8, 0.14), (4, 0.2), (2, 0.28), (1, 0.39)]
    """
    numbers = [restarts]
    while numbers[-1] > 1:
        numbers.append(-(-numbers[-1] // 2))
    weights = [number**-0.5 for number in numbers]
    return [(number, weight / sum(weights)) for number, weight in zip(numbers, weights, strict=True)]


def work(restarts: int) -> float:
    """Steps of single restarts that halving takes in all, for each step of the schedule.

    >>> [round(work(restarts), 2) for restarts in (4, 8, 16)]
    [2.0, 2.83, 4.0]
    """
    return sum(alive * share for alive, share in rungs(restarts))


class Halving:
    """Says after each step which restarts go on. With `on` false, or with few restarts, all of them do."""

    def __init__(self, restarts: int, steps: int, *, on: bool) -> None:
        plan = rungs(restarts) if on and restarts >= FEWEST else []
        ends = accumulate(share for _, share in plan)
        # the last rung ends with the search
        self._cuts = {
            max(1, round(end * steps)): after for end, (after, _) in zip(ends, plan[1:], strict=False)
        }
        self._recent: deque[Tensor] = deque(maxlen=_RECENT)
        self.alive = list(range(restarts))
        self.dropped: list[tuple[int, int]] = []
        """(step, restarts dropped before it)."""

    def __call__(self, step: int, values: Tensor) -> Tensor | None:
        """Before `step` is made: places, among those alive, of the restarts that go on; None: all of them.

        values: (R,) of the objective at this step.
        """
        if len(self.alive) == 1 or not self._cuts:
            return None
        self._recent.append(values)
        number = self._cuts.get(step)
        if number is None:
            return None
        # a value that is no number counts as the worst there is
        score = torch.stack(list(self._recent)).nan_to_num(nan=torch.inf).median(dim=0).values
        index = score.argsort(stable=True)[:number].sort().values
        self.dropped.append((step, len(self.alive) - number))
        self.alive = [self.alive[i] for i in index.tolist()]
        self._recent = deque((row[index] for row in self._recent), maxlen=_RECENT)
        return index

    @property
    def notes(self) -> tuple[str, ...]:
        if not self.dropped:
            return ()
        begun = len(self.alive) + sum(number for _, number in self.dropped)
        when = ", ".join(f"{number} after step {step}" for step, number in self.dropped)
        return (f"Of {begun} restarts those with the higher objective were dropped ({when}).",)

    def state(self) -> State:
        return {"alive": self.alive, "dropped": self.dropped, "recent": list(self._recent)}

    def restore(self, state: State, device: torch.device) -> None:
        self.alive = list(state["alive"])
        self.dropped = [(step, number) for step, number in state["dropped"]]
        self._recent = deque((row.to(device) for row in state["recent"]), maxlen=_RECENT)


def expected_work(restarts: int, *, on: bool) -> Sequence[tuple[float, int]]:
    """(weight, restarts): mean cost of a step as a mixture of steps of all restarts and of a single one."""
    if not on or restarts < FEWEST:
        return [(1.0, restarts)]
    many = (work(restarts) - 1) / (restarts - 1)
    return [(many, restarts), (1 - many, 1)]
