"""A search chooses the weight of its prior by itself, without the truth."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import pytest
import torch
from tests.plateaus import scaled
from torch import Tensor, nn

from seepage.attacks.inversion.inverting_gradients import WEIGHTS, _standing, inverting_gradients
from seepage.attacks.inversion.objective import Candidates, Evaluation
from seepage.attacks.inversion.search import Solution, Solver
from seepage.attacks.inversion.solvers import adam
from seepage.attacks.inversion.tuning import FEWEST, Rival, Rivals
from seepage.core.progress import Clock, listening
from seepage.core.types import Batch, LocalTraining

from .setting import exchange_for, image_spec, knowledge, psnr

SPEC = image_spec(size=16)


def smooth_picture(seed: int = 0) -> Tensor:
    coarse = torch.rand((1, 1, 4, 4), generator=torch.Generator().manual_seed(50 + seed))
    return nn.functional.interpolate(coarse, size=16, mode="bicubic").clamp(0, 1)


def pooling_net() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 16, 5),
    )  # fmt: skip


def rebuilt(picture: int = 0, **settings: object) -> tuple[float, tuple[str, ...]]:
    batch = Batch(smooth_picture(picture), torch.tensor([1]))
    exchange = exchange_for(pooling_net(), batch, LocalTraining())
    attack = inverting_gradients(**{"steps": FEWEST * 10, **settings})  # type: ignore[arg-type]
    found = attack.run([exchange], knowledge(SPEC, LocalTraining()))
    return psnr(found.values, batch.inputs), found.notes


def mean_rebuilt(**settings: object) -> float:
    return statistics.fmean(rebuilt(picture, **settings)[0] for picture in range(2))


def test_the_chosen_weight_is_near_the_best_of_a_finer_grid() -> None:
    grid = [mean_rebuilt(tv=weight) for weight in (0.1, 1.0, 10.0)]
    assert max(grid) > min(grid) + 3, "the weight must matter, or this shows nothing"
    assert mean_rebuilt() > max(grid) - 1.0
    assert any("was chosen by the distance that 40 steps with each ended at" in note for note in rebuilt()[1])


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_the_length_of_short_searches_lies_on_a_plateau(factor: float) -> None:
    where = "seepage.attacks.inversion.tuning"
    with scaled(f"{where}:FEWEST", factor), scaled(f"{where}:SHARE", 1 / factor):
        chosen = mean_rebuilt()
    assert chosen > mean_rebuilt(tv=0.1) + 3


def chosen_by(ends: Sequence[float], **kept: object) -> tuple[str, tuple[str, ...]]:
    """The rival that is chosen where short searches end at these distances."""
    rivals = [Rival(title=f"tv = {number}", priors=()) for number in range(len(ends))]
    asked = iter(range(len(ends)))

    def run(rival: Rival, solver: Solver, clock: Clock) -> Solution:
        one = Candidates(torch.full((1, 1, 1), float(next(asked))), torch.zeros(1, 1, dtype=torch.long))
        settings = {"steps": FEWEST, "stopped": "", **kept}
        value = torch.zeros(1)
        return Solution(candidates=one, values=value, start_values=value, origin=(0,), **settings)  # type: ignore[arg-type]

    def matching(candidates: Candidates) -> Evaluation:
        return Evaluation(torch.tensor([ends[int(candidates.inputs)]]), ())

    whole = Rivals(
        all=rivals, standing=lambda model: 0, solver=lambda steps: adam(steps=steps), steps=FEWEST * 10
    )
    rival, _, notes = whole.choose(nn.Identity(), run, matching, Clock(seconds=None), begun=1.0)
    return rival.title, notes


def test_the_lowest_distance_wins() -> None:
    assert chosen_by([0.3, 0.2, 0.1])[0] == "tv = 2"
    assert chosen_by([0.3, 0.1, 0.2])[0] == "tv = 1"
    assert chosen_by([0.5, float("nan"), 0.1])[0] == "tv = 2"


def test_where_short_searches_get_nowhere_the_standing_weight_is_taken() -> None:
    for factor in (0.5, 1.0, 1.5):
        with scaled("seepage.attacks.inversion.tuning:EXPLAINED", factor):
            title, notes = chosen_by([0.89, 0.84, 0.83])
            assert title == "tv = 0" and "did not tell which prior suits" in notes[0]
            assert chosen_by([0.1, 0.05, 0.02])[0] == "tv = 2"


@pytest.mark.parametrize("kept", [{"stopped": "budget"}, {"steps": FEWEST - 1}])
def test_without_time_for_a_choice_none_is_made_and_that_is_said(kept: dict[str, object]) -> None:
    title, notes = chosen_by([0.5, 0.1], **kept)
    assert title == "tv = 0" and "no time to choose among tv = 0, tv = 1" in notes[0]
    assert chosen_by([0.5, 0.1], stopped="solved", steps=3)[0] == "tv = 1"


def test_too_short_a_search_takes_what_stands_for_the_kind_of_network() -> None:
    assert rebuilt(steps=30)[0] == rebuilt(steps=30, tv=WEIGHTS[1])[0] != rebuilt(steps=30, tv=WEIGHTS[0])[0]
    assert _standing(nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1))) == 0


def test_progress_counts_the_short_searches_as_steps_of_the_whole() -> None:
    heard: list[tuple[int, int]] = []
    with listening(lambda progress: heard.append((progress.step, progress.steps))):
        rebuilt()
    whole = FEWEST * len(WEIGHTS) + FEWEST * 10
    assert {steps for _, steps in heard} == {whole}
    assert [step for step, _ in heard] == list(range(len(heard)))  # and it may end early
    assert len(heard) > FEWEST * len(WEIGHTS)


@pytest.mark.parametrize(
    ("settings", "said"), [({"tv": "large"}, "a number or 'auto'"), ({"tv_relative": False}, "give a number")]
)
def test_wrong_settings(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        inverting_gradients(**settings)  # type: ignore[arg-type]
