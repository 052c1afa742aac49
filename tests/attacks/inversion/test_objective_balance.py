"""A search weighs its prior by itself, by the lengths of two gradients and without the truth."""

from __future__ import annotations

import statistics
from functools import cache

import pytest
import torch
from tests.plateaus import scaled
from torch import Tensor, nn

from seepage.attacks.inversion.inverting_gradients import inverting_gradients
from seepage.attacks.inversion.objective import BALANCE, FADING, Candidates, Evaluation, sum_of
from seepage.attacks.inversion.priors import anisotropic_tv, double_opponent_tv
from seepage.core.types import Batch, LocalTraining

from .setting import conv_net, exchange_for, image_spec, knowledge, problem_for, psnr

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


def rebuilt(picture: int = 0, **settings: object) -> float:
    batch = Batch(smooth_picture(picture), torch.tensor([1]))
    exchange = exchange_for(pooling_net(), batch, LocalTraining())
    attack = inverting_gradients(**{"steps": 400, **settings})  # type: ignore[arg-type]
    found = attack.run([exchange], knowledge(SPEC, LocalTraining()))
    return psnr(found.values, batch.inputs)


@cache
def mean_rebuilt(**settings: object) -> float:
    """Over eight pictures: a search now and then stops at another minimum, some dB away."""
    return statistics.fmean(rebuilt(picture, **settings) for picture in range(8))


def test_it_is_near_the_best_of_a_grid_of_weights() -> None:
    grid = [mean_rebuilt(tv=weight) for weight in (0.1, 1.0, 10.0)]
    assert max(grid) > min(grid) + 3, "the weight must matter, or this shows nothing"
    assert mean_rebuilt() > max(grid) - 1.0


@pytest.mark.parametrize(
    ("name", "factor"), [("BALANCE", 0.7), ("BALANCE", 1.4), ("FADING", 0.5), ("FADING", 1.5)]
)
def test_the_balance_lies_on_a_plateau(name: str, factor: float) -> None:
    before = mean_rebuilt()
    with scaled(f"seepage.attacks.inversion.objective:{name}", factor):
        assert abs(mean_rebuilt.__wrapped__() - before) < 2.0


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("weight", [0.01, 100.0])
def test_the_prior_s_share_does_not_depend_on_scales(scale: float, weight: float) -> None:
    """By hand: a restart further from the match than the start was, and one much nearer."""
    inputs = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    pull = torch.tensor([[3.0, 0.0, 4.0], [0.0, 2.0, 0.0]])

    def matching(candidates: Candidates) -> Evaluation:
        return Evaluation(scale * torch.tensor([2.0, 1e-4]), (scale * pull,))

    objective = sum_of(
        matching, [lambda x: weight * x.square().sum(dim=1)], weighing="balanced", begun=scale * 1.0
    )
    found = objective(Candidates(inputs, torch.zeros(2, 1, dtype=torch.long)))
    push = inputs / inputs.norm(dim=1, keepdim=True)
    share = torch.tensor([[BALANCE * 5.0], [BALANCE * 1e-4**FADING * 2.0]])
    torch.testing.assert_close(found.gradients[0], scale * (pull + share * push), rtol=1e-4, atol=0.0)
    torch.testing.assert_close(found.values, scale * torch.tensor([2.0, 1e-4]))


def test_a_weight_of_one_s_own_goes_with_the_paper_s_kind() -> None:
    spec = image_spec(channels=3, size=8)
    picture = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    problem = problem_for(conv_net(spec).float(), spec, Batch(picture, torch.tensor([1])), LocalTraining())

    def penalty(**settings: object) -> float:
        (prior,) = inverting_gradients(**settings).priors  # type: ignore[arg-type]
        built = prior(problem)
        assert built is not None
        return float(built(picture[None]))

    unit = problem.unit
    assert penalty(tv=0.5) == pytest.approx(0.5 * float(anisotropic_tv(picture[None] / unit)), rel=1e-5)
    assert penalty() == pytest.approx(float(double_opponent_tv(picture[None] / unit)), rel=1e-5)
    assert penalty(tv=0.5, tv_kind="double_opponent") == pytest.approx(0.5 * penalty(), rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "said"), [({"tv": "large"}, "a number or 'auto'"), ({"tv_relative": False}, "give a number")]
)
def test_wrong_settings(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        inverting_gradients(**settings)  # type: ignore[arg-type]
