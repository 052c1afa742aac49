"""The initialisers against the closed-form distributions."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import nn

from seepage.core.errors import ModelError
from seepage.models.zoo.initialisers import INITIALISERS, initialise

FAN_IN, FAN_OUT = 400, 250
XAVIER_STD = math.sqrt(2 / (FAN_IN + FAN_OUT))
STDS = {
    "xavier_normal": XAVIER_STD,
    "xavier_uniform": XAVIER_STD,
    "gaussian_0.01": 0.01,
    "gaussian_0.1": 0.1,
    "gaussian_0.5": 0.5,
    "gaussian_1": 1.0,
    "gaussian_2": 2.0,
}


def drawn(name: str, seed: int = 0) -> torch.Tensor:
    layer = initialise(nn.Linear(FAN_IN, FAN_OUT), name, generator_seed=seed)
    assert isinstance(layer, nn.Linear)
    assert torch.equal(layer.bias, torch.zeros(FAN_OUT))
    return layer.weight.detach()


def test_the_seven_of_table_2_and_torchs_own_are_there() -> None:
    assert set(INITIALISERS) == {*STDS, "default"}


@pytest.mark.parametrize("name", STDS)
def test_standard_deviation(name: str) -> None:
    weight = drawn(name)  # 100,000 draws: the standard error of the std is 0.22 %
    assert float(weight.std()) == pytest.approx(STDS[name], rel=0.01)
    assert float(weight.mean()) == pytest.approx(0, abs=0.01 * STDS[name])


@pytest.mark.parametrize("name", STDS)
def test_distribution(name: str) -> None:
    if name == "xavier_uniform":
        limit = math.sqrt(6 / (FAN_IN + FAN_OUT))
        reference = stats.uniform(-limit, 2 * limit)
    elif name == "xavier_normal":
        reference = stats.truncnorm(-2, 2, scale=XAVIER_STD / stats.truncnorm(-2, 2).std())
    else:
        reference = stats.norm(scale=STDS[name])
    assert stats.kstest(drawn(name).flatten().numpy(), reference.cdf).pvalue > 0.01


def test_convolutions_count_the_receptive_field() -> None:
    conv = nn.Conv2d(64, 96, kernel_size=3)
    initialise(conv, "xavier_uniform", generator_seed=1).requires_grad_(False)
    assert float(conv.weight.std()) == pytest.approx(math.sqrt(2 / (9 * (64 + 96))), rel=0.01)
    assert float(conv.weight.abs().max()) <= math.sqrt(6 / (9 * (64 + 96)))


@pytest.mark.parametrize("name", STDS)
def test_norms_and_embeddings_keep_their_own(name: str) -> None:
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.LayerNorm(4))
    embedding = model[0].weight.detach().clone()
    initialise(model, name, generator_seed=0)
    assert torch.equal(model[0].weight, embedding)
    for norm in (model[2], model[3]):
        assert torch.equal(norm.weight, torch.ones(4))
        assert torch.equal(norm.bias, torch.zeros(4))


def test_same_seed_same_weights_and_the_global_state_stays() -> None:
    before = torch.get_rng_state()
    first, second, other = drawn_all(3), drawn_all(3), drawn_all(4)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert torch.equal(torch.get_rng_state(), before)


def drawn_all(seed: int) -> list[torch.Tensor]:
    with torch.random.fork_rng():
        return [drawn(name, seed) for name in STDS]


def test_default_keeps_what_was_built() -> None:
    layer = nn.Linear(5, 4)
    weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
    initialise(layer, "default", generator_seed=0)
    assert torch.equal(layer.weight, weight)
    assert torch.equal(layer.bias, bias)


def test_dtype_of_the_model_is_kept() -> None:
    layer = initialise(nn.Linear(5, 4).double(), "gaussian_1", generator_seed=0)
    assert layer.weight.dtype is torch.float64


def test_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ModelError, match="did you mean 'xavier_normal'"):
        initialise(nn.Linear(2, 2), "xavier_normall", generator_seed=0)
