"""Successive halving: what it costs, whom it keeps, and that survivors do not notice."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from seepage.attacks.inversion.distances import cosine
from seepage.attacks.inversion.halving import Halving, expected_work, rungs, work
from seepage.attacks.inversion.inverting_gradients import inverting_gradients
from seepage.attacks.inversion.objective import (
    Candidates,
    Evaluation,
    Objective,
    differentiated,
    update_matching,
)
from seepage.attacks.inversion.search import Search, Solution
from seepage.attacks.inversion.solvers import adam
from seepage.core.checkpoint import Checkpoint, Identity
from seepage.core.progress import Clock
from seepage.core.types import LocalTraining

from .setting import conv_net, exchange_for, image_spec, knowledge, problem_for, random_batch


def search() -> Search:
    return Search(
        project=lambda x: x.clamp(-3, 3),
        unit=1.0,
        clock=Clock(seconds=None),
        generator=torch.Generator().manual_seed(0),
        checkpoint=Checkpoint(lambda: Identity({}, torch.zeros(1))),
    )


def starts(restarts: int) -> Candidates:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(restarts, 1, 3, generator=generator, dtype=torch.float64)
    return Candidates(inputs, torch.zeros(restarts, 1, dtype=torch.long))


def bumpy(candidates: Candidates) -> Tensor:
    """Many local minima, so that restarts end at different values."""
    x = candidates.inputs.flatten(1)
    return (0.1 * x.square() + 1 - torch.cos(4 * x)).sum(1)


def counted(objective: Objective, calls: list[int]) -> Objective:
    def counting(candidates: Candidates) -> Evaluation:
        calls.append(len(candidates))
        return objective(candidates)

    return counting


@pytest.mark.parametrize("restarts", [4, 5, 8, 16])
def test_rungs_cover_the_schedule_and_halve(restarts: int) -> None:
    plan = rungs(restarts)
    assert sum(share for _, share in plan) == pytest.approx(1)
    numbers = [number for number, _ in plan]
    assert numbers[0] == restarts and numbers[-1] == 1
    assert all(after == (before + 1) // 2 for before, after in pairwise(numbers))
    (many, _), (one, _) = expected_work(restarts, on=True)
    assert many * restarts + one == pytest.approx(work(restarts)) and many + one == pytest.approx(1)


def test_eight_restarts_take_at_most_four_times_the_work_of_one() -> None:
    calls: list[int] = []
    found = adam(steps=200)(counted(differentiated(bumpy), calls), starts(8), search())
    assert len(calls) == 201 and sum(calls) / 201 == pytest.approx(work(8), rel=0.02)
    assert sum(calls) / 201 < 3
    assert [calls.count(number) for number in (8, 4, 2)] == [
        29,
        39,
        55,
    ]  # rungs(8) of 200 steps, 1 evaluation
    assert len(found.origin) == len(found.values) == len(found.candidates) == 1
    assert "4 after step 28, 2 after step 67, 1 after step 122" in found.notes[0]


def same_restart(halved: Solution, whole: Solution) -> None:
    (origin,) = halved.origin
    assert torch.equal(halved.values[0], whole.values[origin])
    assert torch.equal(halved.start_values[0], whole.start_values[origin])
    assert torch.equal(halved.candidates.inputs[0], whole.candidates.inputs[origin])


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("signed", [False, True])
def test_a_survivor_moves_as_if_nobody_had_been_dropped(signed: bool, noise: float) -> None:
    def solve(halving: bool) -> Solution:
        solver = adam(steps=150, signed=signed, noise=noise, halving=halving)
        return solver(differentiated(bumpy), starts(8), search())

    same_restart(solve(True), solve(False))
    assert len(solve(False).origin) == 8 and solve(False).notes == ()


def test_a_survivor_of_a_network_moves_as_if_nobody_had_been_dropped_and_as_alone() -> None:
    spec = image_spec(size=6)
    problem = problem_for(conv_net(spec), spec, random_batch(spec, [1, 3]), LocalTraining())
    start = Candidates(
        torch.rand(5, 2, *spec.shape, dtype=torch.float64), torch.tensor([[1, 3]]).expand(5, 2)
    )
    objective = update_matching(problem, cosine)  # restart by restart
    halved = adam(steps=40, signed=True)(objective, start, search())
    same_restart(halved, adam(steps=40, signed=True, halving=False)(objective, start, search()))
    alone = adam(steps=40, signed=True)(objective, start.restart(halved.origin[0]), search())
    assert torch.equal(alone.candidates.inputs, halved.candidates.inputs)


def test_soft_labels_of_the_survivors_go_with_them() -> None:
    start = Candidates(starts(6).inputs, torch.randn(6, 1, 2, dtype=torch.float64))

    def both(c: Candidates) -> Tensor:
        return bumpy(c) + c.labels.square().flatten(1).sum(1)

    halved = adam(steps=60)(differentiated(both), start, search())
    whole = adam(steps=60, halving=False)(differentiated(both), start, search())
    same_restart(halved, whole)
    assert torch.equal(halved.candidates.labels[0], whole.candidates.labels[halved.origin[0]])


def test_the_median_of_the_last_values_decides_and_not_a_lucky_one() -> None:
    halving = Halving(4, 100, on=True)
    cut = round(rungs(4)[0][1] * 100)
    usual = torch.tensor([5.0, 1.0, 4.0, 2.0])
    for step in range(cut):
        assert halving(step, usual) is None
    lucky = torch.tensor([0.0, 9.0, 4.0, 2.0])  # at the cut the worst is lowest and the best highest
    kept = halving(cut, lucky)
    assert kept is not None and kept.tolist() == [1, 3] and halving.alive == [1, 3]


def test_what_is_no_number_is_dropped_first() -> None:
    halving = Halving(4, 100, on=True)
    cut = round(rungs(4)[0][1] * 100)
    for step in range(cut + 1):
        halving(step, torch.tensor([torch.nan, 7.0, torch.inf, 9.0]))
    assert halving.alive == [1, 3]


@pytest.mark.parametrize(("restarts", "on"), [(3, True), (8, False)])
def test_few_restarts_or_switched_off_drops_nobody(restarts: int, on: bool) -> None:
    found = adam(steps=30, halving=on)(differentiated(bumpy), starts(restarts), search())
    assert found.origin == tuple(range(restarts))


def test_the_attack_says_how_many_were_dropped() -> None:
    spec, batch = image_spec(size=6), random_batch(image_spec(size=6), [3])
    exchange = exchange_for(conv_net(spec), batch, LocalTraining())
    notes = inverting_gradients(steps=20, restarts=4).run([exchange], knowledge(spec, LocalTraining())).notes
    assert any(note.startswith("Of 4 restarts") for note in notes)
    kept = inverting_gradients(steps=20, restarts=4, halving=False)
    assert not any("dropped" in n for n in kept.run([exchange], knowledge(spec, LocalTraining())).notes)
