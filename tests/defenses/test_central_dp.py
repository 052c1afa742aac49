"""Central DP: what an honest server's aggregate shows, and what a dishonest server keeps for itself."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import nn

from seepage.core.types import Batch, Broadcast, Update, UpdateKind
from seepage.defenses import Deployment
from seepage.defenses.central_dp import central_dp
from seepage.defenses.clipping import clipping
from seepage.protocol import aggregate

BROADCAST = Broadcast(nn.Linear(2, 2))
BATCH = Batch(torch.zeros(3, 2), torch.tensor([0, 1, 0]))


def step_sending(tensor: torch.Tensor):
    return lambda broadcast, batch: Update(kind=UpdateKind.DELTA, tensors={"w": tensor}, num_examples=3)


def test_a_dishonest_server_is_left_with_clipping_alone() -> None:
    step = step_sending(torch.randn(50, generator=torch.Generator().manual_seed(0)))
    sent = central_dp(norm=0.5, sigma=8.0)(BROADCAST, BATCH, step)
    only_clipped = clipping(norm=0.5)(BROADCAST, BATCH, step)
    assert torch.equal(sent.tensors["w"], only_clipped.tensors["w"])
    assert sent.num_examples == 3


@pytest.mark.parametrize(("clients", "rule"), [(1, "mean"), (10, "mean"), (10, "secure_sum"), (10, "sum")])
def test_the_honest_mean_carries_sigma_norm_over_clients(clients, rule) -> None:
    n, norm, sigma = 30_000, 2.0, 1.5
    around = Deployment(clients=clients, aggregation=rule, sees_each_update=False)
    defense = central_dp(norm=norm, sigma=sigma, server_honest=True, seed=4, deployment=around)
    base = torch.full((n,), 3.0, dtype=torch.float64)  # norm far above the bound
    sent = [defense(BROADCAST, BATCH, step_sending(base)) for _ in range(clients)]
    mean = aggregate(sent, rule).tensors["w"]
    noise = (mean - norm * base / base.norm()) / (sigma * norm / clients)
    low, high = stats.chi2(n).ppf([0.0005, 0.9995])
    assert low < noise.square().sum().item() < high
    assert stats.kstest(noise.numpy(), "norm").pvalue > 0.001


def test_an_honest_aggregate_hides_nothing_from_who_sees_single_updates() -> None:
    with pytest.raises(ValueError, match="somebody sees each client's update"):
        central_dp(server_honest=True, deployment=Deployment(clients=2, sees_each_update=True))
    with pytest.raises(ValueError, match="not for aggregation = 'median'"):
        median = Deployment(clients=3, aggregation="median", sees_each_update=False)
        central_dp(server_honest=True, deployment=median)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"norm": -1.0}, "norm must be positive"),
        ({"norm": math.inf, "server_honest": True}, "norm must be finite"),
        ({"sigma": math.nan}, "sigma must be zero or positive and finite"),
    ],
)
def test_central_dp_refuses(settings, sentence) -> None:
    with pytest.raises(ValueError, match=sentence):
        central_dp(**settings)
