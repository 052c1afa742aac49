"""A search that finds its own prior: a few steps with each, and the best at explaining the update goes on.

How much a prior should weigh differs by orders of magnitude between networks. Too little leaves noise that
the update does not speak against, and that noise keeps the search from getting nearer to the update, too: so
the distance that a short search ends at, without the prior's say, tells which weight suits the network. It
needs no truth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from seepage.attacks.inversion.objective import Objective
from seepage.attacks.inversion.priors import PriorFactory
from seepage.attacks.inversion.search import Solution, Solver
from seepage.core.progress import Clock

SHARE = 10
"""A short search takes the whole one's steps over this. A choice: three of them cost 30 % more."""
FEWEST = 40
"""Steps of a short search. With fewer it is mostly the start that is compared. Tested:
test_the_length_of_short_searches_lies_on_a_plateau."""
EXPLAINED = 0.5
"""Of the distance at the start: a short search that ends above it has not got anywhere, as in deep networks
with batch norm, and its distance says nothing about the prior. Tested:
test_where_short_searches_get_nowhere_the_standing_weight_is_taken."""
_TIME = SHARE + 3
"""Of a budget each short search gets this fraction. Derived: with three of them the whole one is SHARE times
as long as each."""


@dataclass(frozen=True, kw_only=True)
class Rival:
    """Priors that may suit the network."""

    title: str
    priors: Sequence[PriorFactory]


@dataclass(frozen=True, kw_only=True)
class Rivals:
    """Priors to choose among by short searches."""

    all: Sequence[Rival]
    standing: Callable[[nn.Module], int]
    """Number of the one that stands for this model where short searches cannot be made or say nothing."""
    solver: Callable[[int], Solver]
    """By its number of steps."""
    steps: int
    """Of the whole search."""

    @property
    def trial(self) -> int:
        """Steps of a short search; 0: the whole one is too short to be preceded by any."""
        wanted = self.steps // SHARE
        return wanted if wanted >= FEWEST else 0

    def choose(
        self,
        model: nn.Module,
        run: Callable[[Rival, Solver, Clock], Solution],
        matching: Objective,
        clock: Clock,
        *,
        begun: float,
    ) -> tuple[Rival, Clock, tuple[str, ...]]:
        """The rival to search with, the clock for it, and how it was chosen.

        run: a search by one restart. matching: the distance alone. begun: that of the start.
        """
        if len(self.all) == 1:
            return self.all[0], clock, ()
        stands, trial = self.standing(model), self.trial
        first = self.all[stands]
        if not trial:
            return first, clock, ()
        ahead, ends = len(self.all) * trial, []
        for number, rival in enumerate(self.all):
            short = clock.part(before=number * trial, after=ahead - (number + 1) * trial + self.steps)
            short.seconds = None if clock.seconds is None else clock.seconds / _TIME
            solution = run(rival, self.solver(trial), short)
            if solution.stopped == "budget" or (not solution.stopped and solution.steps < FEWEST):
                said = f"There was no time to choose among {_titles(self.all)}: {first.title} was taken."
                return first, clock, (said,)
            ends.append(float(matching(solution.candidates).values.nan_to_num(nan=torch.inf).min()))
        rest = clock.part(before=ahead, after=0)
        reached = ", ".join(f"{rival.title}: {end:.2g}" for rival, end in zip(self.all, ends, strict=True))
        if min(ends) > EXPLAINED * begun:
            said = f"{trial} steps did not tell which prior suits ({reached}): {first.title} was taken."
            return first, rest, (said,)
        best = self.all[min(range(len(ends)), key=ends.__getitem__)]
        said = f"{best.title} was chosen by the distance that {trial} steps with each ended at ({reached})."
        return best, rest, (said,)


def _titles(rivals: Sequence[Rival]) -> str:
    return ", ".join(rival.title for rival in rivals)
