"""What a solver is given and what it returns, and the best candidates it has seen on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seepage.attacks.inversion.objective import Candidates, Objective
from seepage.core.checkpoint import Checkpoint, State
from seepage.core.progress import Clock

_GAIN = 1e-3
"""Relative improvement of the best objective below which the search stands still. No plateau test yet."""
_RUN_AWAY = 2.0
"""Adam's last candidate is dropped for its best one where its objective is this many times as high. No
plateau test yet."""
_SOLVED = 1e-14
"""An objective relative to the update's length at which only rounding is left. Derived: the square of
float32's rounding, 1.4e-14."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """What a solver needs besides the objective."""

    project: Callable[[Tensor], Tensor]
    """Into the box of possible inputs."""
    unit: float
    """Inputs move by step sizes in this unit."""
    clock: Clock
    generator: torch.Generator
    checkpoint: Checkpoint

    def resume(self, settings: Mapping[str, Any]) -> State | None:
        """The state an interrupted run of this very search has left, if any; its seconds count as spent."""
        kept = self.checkpoint.restore(settings)
        if kept is None:
            return None
        state, seconds = kept
        self.clock.advance(seconds)
        self.generator.set_state(state["generator"])
        torch.set_rng_state(state["random"])
        return state["solver"]

    def state(self, solver: State) -> State:
        """A solver's state with that of everything random: dropout draws from torch's own generator."""
        return {
            "generator": self.generator.get_state(),
            "random": torch.get_rng_state(),
            "solver": solver,
        }


@dataclass(frozen=True, kw_only=True)
class Solution:
    """The best candidates of every restart that was followed to the end, by objective."""

    candidates: Candidates
    values: Tensor
    """(R,)"""
    start_values: Tensor
    """(R,) before the first step."""
    origin: tuple[int, ...]
    """(R,) numbers of these restarts among those that were begun."""
    steps: int
    stopped: str
    """Why before the last step: plateau, budget, solved, or nothing."""
    notes: tuple[str, ...] = ()
    confidence: Tensor | None = None
    """(n,) of each example, from 0 to 1, where restarts have told."""


Solver = Callable[[Objective, Candidates, Search], Solution]


def subset(candidates: Candidates, index: Tensor) -> Candidates:
    """Some of the restarts."""
    return Candidates(candidates.inputs[index], candidates.labels[index])


class Best:
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
        self._take(better, candidates)

    @property
    def lowest(self) -> float:
        return float(self.values.min())

    def stop(self, clock: Clock, patience: int, *, settled: bool) -> str:
        """Why the search should end here, or nothing."""
        if float(self.values.max()) <= _SOLVED:
            return "solved"
        if clock.expired:
            return "budget"
        return "plateau" if settled and self._stands_still(patience) else ""

    def _stands_still(self, patience: int) -> bool:
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
        self._take(near, last)

    def _take(self, chosen: Tensor, candidates: Candidates) -> None:
        taken = [
            torch.where(chosen.reshape(-1, *(1,) * (new.dim() - 1)), new.detach(), old)
            for new, old in zip(candidates.free, self.candidates.free, strict=True)
        ]
        self.candidates = self.candidates.moved(taken)

    def keep(self, index: Tensor) -> None:
        """Forget the other restarts."""
        assert self.start_values is not None
        self.candidates = subset(self.candidates, index)
        self.values, self.start_values = self.values[index], self.start_values[index]

    def state(self) -> State:
        return {
            "free": list(self.candidates.free),
            "values": self.values,
            "start_values": self.start_values,
            "mark": self._mark,
            "since": self._since,
        }

    def restore(self, state: State) -> None:
        where = self.values.device
        self.candidates = self.candidates.moved([tensor.to(where) for tensor in state["free"]])
        self.values = state["values"].to(where)
        begun = state["start_values"]
        self.start_values = None if begun is None else begun.to(where)
        self._mark, self._since = float(state["mark"]), int(state["since"])

    def solution(
        self, steps: int, stopped: str, *, origin: tuple[int, ...], notes: tuple[str, ...] = ()
    ) -> Solution:
        assert self.start_values is not None
        return Solution(
            candidates=self.candidates,
            values=self.values,
            start_values=self.start_values,
            origin=origin,
            steps=steps,
            stopped=stopped,
            notes=notes,
        )
