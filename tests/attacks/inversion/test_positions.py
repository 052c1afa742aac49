"""A vision transformer's search is told where patches lie by its position embedding's gradient."""

from __future__ import annotations

import statistics
from functools import cache

import pytest
import torch
from tests.plateaus import scaled
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from seepage.attacks.inversion import gradient_inversion
from seepage.attacks.inversion.directional import directional_matching
from seepage.attacks.inversion.distances import cosine
from seepage.attacks.inversion.inverting_gradients import inverting_gradients
from seepage.attacks.inversion.objective import Candidates, update_matching
from seepage.attacks.inversion.positions import SHARE, positions_first
from seepage.core.types import Batch, LocalTraining

from .setting import conv_net, exchange_for, image_spec, knowledge, problem_for, psnr, random_batch

SPEC = image_spec(size=16)
WIDTH, PATCHES = 24, 16


class SmallTransformer(nn.Module):
    """Patches of 4 x 4, a faint position embedding, two layers."""

    def __init__(self, *, faint: float = 0.02, trained: bool = True) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, WIDTH, 4, stride=4)
        self.place = nn.Parameter(faint * torch.randn(1, PATCHES, WIDTH), requires_grad=trained)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, 2, 2 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, SPEC.num_classes)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.patches(x).flatten(2).transpose(1, 2) + self.place
        for layer in self.layers:
            rows = layer(rows)
        out: Tensor = self.head(rows.mean(dim=1))
        return out


def transformer(seed: int = 0, **settings: bool) -> nn.Module:
    torch.manual_seed(seed)
    return SmallTransformer(**settings).eval()


def picture(seed: int) -> Tensor:
    """Patches that differ: where they lie matters."""
    coarse = torch.rand((1, 1, 4, 4), generator=torch.Generator().manual_seed(70 + seed))
    return nn.functional.interpolate(coarse, size=16, mode="bilinear")


def test_the_position_embedding_has_its_share_of_the_weighted_square() -> None:
    problem = problem_for(
        transformer().double(), SPEC, random_batch(SPEC, [1, 2]), LocalTraining(algorithm="fedavg", lr=0.1)
    )
    weights = positions_first(problem)
    assert weights is not None
    place = problem.names.index("place")
    assert all(w == 1.0 for i, w in enumerate(weights) if i != place)
    weighted = [w * float(t.square().sum()) for w, t in zip(weights, problem.observed, strict=True)]
    assert weighted[place] == pytest.approx(SHARE * (sum(weighted) - weighted[place]), rel=1e-9)


@pytest.mark.parametrize("model", [conv_net(SPEC), transformer(trained=False).double()])
def test_models_without_a_trained_position_embedding_are_left_alone(model: nn.Module) -> None:
    assert positions_first(problem_for(model, SPEC, random_batch(SPEC, [1]), LocalTraining())) is None


@pytest.mark.parametrize("factor", [0.4, 1.0, 3.0])
def test_weighted_positions_need_no_double_backprop(factor: float) -> None:
    problem = problem_for(transformer(), SPEC, Batch(picture(0), torch.tensor([1])), LocalTraining())
    start = Candidates(
        torch.randn(1, 1, 1, 16, 16, generator=torch.Generator().manual_seed(5)), torch.tensor([[1]])
    )
    weights = positions_first(problem)
    with scaled("seepage.attacks.inversion.directional:_FAR", factor), sdpa_kernel(SDPBackend.MATH):
        fast = directional_matching(problem, cosine, weights, start)
        expected = update_matching(problem, cosine, weights)(start)
    assert fast is not None
    found = fast(start)
    torch.testing.assert_close(found.values, expected.values, rtol=1e-3, atol=1e-6)
    error = (found.gradients[0] - expected.gradients[0]).norm() / expected.gradients[0].norm()
    assert error < 0.01


@cache
def mean_rebuilt() -> float:
    found = []
    for seed in range(3):
        batch = Batch(picture(seed), torch.tensor([seed]))
        exchange = exchange_for(transformer(seed), batch, LocalTraining())
        rebuilt = inverting_gradients(steps=200).run([exchange], knowledge(SPEC, LocalTraining()))
        found.append(psnr(rebuilt.values, batch.inputs))
    return statistics.fmean(found)


def test_patches_come_to_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    with_it = mean_rebuilt()
    monkeypatch.setattr(gradient_inversion, "positions_first", lambda _problem: None)
    without = mean_rebuilt.__wrapped__()
    assert with_it > without + 5, (with_it, without)


@pytest.mark.parametrize("factor", [0.7, 3.0])
def test_the_position_s_share_lies_on_a_plateau(factor: float) -> None:
    before = mean_rebuilt()
    with scaled("seepage.attacks.inversion.positions:SHARE", factor):
        assert abs(mean_rebuilt.__wrapped__() - before) < 2.0
