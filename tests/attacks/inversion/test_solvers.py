"""Solvers on a quadratic whose minimum is known, the budget, and what listeners hear."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor

from seepage.attacks.inversion.lbfgs import lbfgs
from seepage.attacks.inversion.objective import Candidates, Evaluation, Objective, differentiated
from seepage.attacks.inversion.search import Search, Solver
from seepage.attacks.inversion.solvers import SCHEDULES, adam, cosine_decay, step_decay
from seepage.core.checkpoint import Checkpoint, Identity
from seepage.core.progress import Clock, Progress, listening

GOAL = torch.tensor([[[0.2, -0.4, 0.9]], [[-0.7, 0.1, 0.3]]], dtype=torch.float64)  # two restarts
START = Candidates(torch.zeros(2, 1, 3, dtype=torch.float64), torch.zeros(2, 1, dtype=torch.long))


def quadratic(candidates: Candidates) -> Tensor:
    curvature = torch.tensor([1.0, 20.0, 3.0], dtype=torch.float64)
    return (curvature * (candidates.inputs - GOAL[: len(candidates)]).square()).flatten(1).sum(1)


def search(*, seconds: float | None = None, box: float = 10.0) -> Search:
    return Search(
        project=lambda x: x.clamp(-box, box),
        unit=1.0,
        clock=Clock(seconds=seconds),
        generator=torch.Generator().manual_seed(0),
        checkpoint=Checkpoint(lambda: Identity({}, torch.zeros(1))),
    )


@pytest.mark.parametrize(
    "solver",
    [
        adam(steps=400, step_size=0.1),
        adam(steps=400, step_size=0.1, signed=True),
        adam(steps=400, step_size=0.1, signed=True, schedule=step_decay),
        adam(steps=400, step_size=0.1, warm_up=20, noise=0.1),
    ],
)
def test_adam_finds_the_minimum_of_every_restart(solver: Solver) -> None:
    found = solver(differentiated(quadratic), START, search())
    torch.testing.assert_close(found.candidates.inputs, GOAL, atol=1e-2, rtol=0)
    torch.testing.assert_close(found.values, quadratic(found.candidates))
    torch.testing.assert_close(found.start_values, quadratic(START))


def test_lbfgs_finds_the_minimum_of_one_restart() -> None:
    found = lbfgs(steps=50)(differentiated(quadratic), START.restart(0), search())
    torch.testing.assert_close(found.candidates.inputs, GOAL[:1], atol=1e-6, rtol=0)
    assert found.stopped == "solved" and found.steps < 50


@pytest.mark.parametrize("solver", [adam(steps=300, step_size=0.1), lbfgs(steps=30)])
def test_results_stay_inside_the_box(solver: Solver) -> None:
    found = solver(differentiated(quadratic), START.restart(0), search(box=0.3))
    assert float(found.candidates.inputs.abs().max()) <= 0.3


@pytest.mark.parametrize(("last", "kept"), [(6.0, 2), (float("nan"), 2), (1.9, 5)])
def test_adam_keeps_its_last_candidate_unless_the_objective_ran_away(last: float, kept: int) -> None:
    """The lowest objective is the third; the last one is kept only if it is not twice as high."""
    seen: list[Tensor] = []
    values = [5.0, 3.0, 1.0, 4.0, float("nan"), last]

    def rising(candidates: Candidates) -> Evaluation:
        seen.append(candidates.inputs.clone())
        return Evaluation(torch.tensor([values[len(seen) - 1]]), (torch.ones_like(candidates.inputs),))

    found = adam(steps=5, step_size=0.1)(rising, START.restart(0), search())
    assert found.values.tolist() == pytest.approx([values[kept]])
    torch.testing.assert_close(found.candidates.inputs, seen[kept])


def test_labels_move_with_the_inputs() -> None:
    goal = torch.tensor([[[1.0, -1.0]]], dtype=torch.float64)
    start = Candidates(START.inputs[:1], torch.zeros(1, 1, 2, dtype=torch.float64))

    def both(c: Candidates) -> Tensor:
        return quadratic(c) + (c.labels - goal).square().flatten(1).sum(1)

    for solver in (adam(steps=400, step_size=0.1), lbfgs(steps=50)):
        found = solver(differentiated(both), start, search())
        torch.testing.assert_close(found.candidates.labels, goal, atol=1e-2, rtol=0)


def test_a_plateau_ends_the_search_only_once_steps_are_small() -> None:
    def flat(candidates: Candidates) -> Evaluation:
        return Evaluation(torch.ones(1), (torch.zeros_like(candidates.inputs),))

    found = adam(steps=1000, schedule=cosine_decay)(flat, START.restart(0), search())
    settled = next(k for k in range(1000) if cosine_decay(k / 1000) <= 0.1)
    assert found.stopped == "plateau" and settled < found.steps < 1000
    assert adam(steps=1000, schedule=SCHEDULES["constant"])(flat, START.restart(0), search()).stopped == ""


def slow(objective: Objective, seconds: float) -> Objective:
    def slowed(candidates: Candidates) -> Evaluation:
        time.sleep(seconds)
        return objective(candidates)

    return slowed


def test_the_budget_sets_the_number_of_steps_and_with_it_the_schedule() -> None:
    found = adam(steps=100_000)(slow(differentiated(quadratic), 0.005), START.restart(0), search(seconds=0.5))
    assert 1 <= found.steps <= 100
    # at most the steps that were asked for
    assert adam(steps=3)(differentiated(quadratic), START.restart(0), search(seconds=5)).steps == 3


def test_listeners_hear_every_step() -> None:
    heard: list[Progress] = []
    with listening(heard.append):
        adam(steps=7)(differentiated(quadratic), START, search())
    adam(steps=7)(differentiated(quadratic), START, search())
    assert [p.step for p in heard] == list(range(7)) and {p.steps for p in heard} == {7}
    values = [p.objective for p in heard]
    assert values == sorted(values, reverse=True)
    assert heard[-1].seconds_left >= 0 and heard[0].inputs.shape == START.inputs.shape
