"""Aggregation against pooled batches and numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from seepage.core.errors import DataError, SpecError
from seepage.core.types import Batch, Broadcast, LocalTraining, Update, UpdateKind
from seepage.protocol import aggregate, local_update


def update(value: torch.Tensor, n: int | None = 1, **buffers: torch.Tensor) -> Update:
    return Update(kind=UpdateKind.DELTA, tensors={"w": value}, num_examples=n, buffers=buffers or None)


@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5), seed=st.integers(0, 1000))
@pytest.mark.parametrize("rule", ["mean", "secure_sum"])
def test_weighted_mean_is_the_gradient_of_the_pooled_batch(rule, sizes, seed) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    batches = [Batch(torch.randn(n, 4, dtype=torch.float64), torch.randint(3, (n,))) for n in sizes]
    parts = [local_update(Broadcast(model), b, LocalTraining()) for b in batches]
    pooled = local_update(Broadcast(model), Batch.concat(batches), LocalTraining())
    combined = aggregate(parts, rule)
    assert combined.kind is UpdateKind.GRADIENT
    assert combined.num_examples == pooled.num_examples == sum(sizes)
    for name, expected in pooled.tensors.items():
        assert torch.allclose(combined.tensors[name], expected, rtol=1e-12, atol=1e-14), name


@settings(max_examples=40, deadline=None)
@given(clients=st.integers(1, 7), seed=st.integers(0, 1000))
def test_median_is_numpys(clients, seed) -> None:
    values = torch.randn(clients, 3, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    combined = aggregate([update(v, n=i + 1) for i, v in enumerate(values)], "median")
    assert np.array_equal(combined.tensors["w"].numpy(), np.median(values.numpy(), axis=0))


def test_secure_sum_is_the_mean_and_inputs_stay() -> None:
    parts = [update(torch.tensor([1.0, 5.0]), 1), update(torch.tensor([3.0, -1.0]), 3)]
    assert aggregate(parts, "mean").tensors["w"].tolist() == [2.5, 0.5]
    assert torch.equal(aggregate(parts, "secure_sum").tensors["w"], aggregate(parts, "mean").tensors["w"])
    assert parts[0].tensors["w"].tolist() == [1.0, 5.0]


def test_unknown_sizes_weigh_equally_and_stay_unknown() -> None:
    combined = aggregate([update(torch.tensor([0.0]), None), update(torch.tensor([4.0]), 3)], "mean")
    assert combined.tensors["w"].item() == 2.0
    assert combined.num_examples is None


def test_buffers_are_averaged_and_counters_kept() -> None:
    parts = [
        update(torch.zeros(1), 1, mean=torch.tensor([0.0]), count=torch.tensor(7)),
        update(torch.zeros(1), 3, mean=torch.tensor([8.0]), count=torch.tensor(9)),
    ]
    combined = aggregate(parts, "mean")
    assert combined.buffers["mean"].tolist() == [6.0]
    assert combined.buffers["count"].item() == 7
    assert combined.buffers["count"].dtype is torch.int64
    assert aggregate([*parts, update(torch.zeros(1))], "mean").buffers is None


def test_sentences() -> None:
    with pytest.raises(DataError, match="'per_client' does not combine 1 updates"):
        aggregate([update(torch.zeros(1))], "per_client")
    with pytest.raises(DataError, match="'mean' does not combine 0 updates"):
        aggregate([], "mean")
    with pytest.raises(SpecError, match="unknown aggregation 'medain': did you mean 'median'"):
        aggregate([update(torch.zeros(1))], "medain")


def test_a_plain_sum_is_seen_divided_by_the_number_of_clients() -> None:
    parts = [
        Update(kind=UpdateKind.GRADIENT, tensors={"w": torch.tensor([v])}, num_examples=n)
        for v, n in ((1.0, 1), (4.0, 3), (7.0, 5))
    ]
    combined = aggregate(parts, "sum")
    assert combined.tensors["w"].item() == pytest.approx((1 + 4 + 7) / 3)
    assert combined.num_examples == 9
