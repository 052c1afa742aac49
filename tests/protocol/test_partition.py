"""Spreading examples over clients: disjoint, of the right size, IID or skewed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from seepage.core.errors import DataError
from seepage.protocol import draw_clients

TEN = torch.arange(1000) % 10


@settings(max_examples=80, deadline=None)
@given(
    clients=st.integers(1, 6),
    each=st.integers(1, 12),
    spare=st.integers(0, 20),
    classes=st.integers(1, 5),
    scheme=st.sampled_from(["iid", "dirichlet"]),
    alpha=st.floats(1e-6, 1e6),
    seed=st.integers(0, 1000),
)
def test_clients_are_disjoint_and_of_the_right_size(
    clients, each, spare, classes, scheme, alpha, seed
) -> None:
    labels = torch.arange(clients * each + spare) % classes  # spare = 0: every class is used up
    options = {"clients": clients, "examples_each": each, "scheme": scheme, "alpha": alpha, "seed": seed}
    drawn = draw_clients(labels, **options)
    assert [len(c) for c in drawn] == [each] * clients
    flat = torch.cat(drawn).tolist()
    assert len(set(flat)) == len(flat)
    assert all(0 <= i < len(labels) for i in flat)
    assert [c.tolist() for c in draw_clients(labels, **options)] == [c.tolist() for c in drawn]


@pytest.mark.parametrize("scheme", ["iid", "dirichlet"])
def test_another_seed_draws_other_examples(scheme) -> None:
    first, second = (
        draw_clients(TEN, clients=2, examples_each=20, scheme=scheme, seed=seed)[0].tolist()
        for seed in (0, 1)
    )
    assert first != second


def mean_classes_held(scheme: str, alpha: float = 1.0) -> float:
    held = [
        len(set(TEN[c].tolist()))
        for seed in range(20)
        for c in draw_clients(TEN, clients=5, examples_each=20, scheme=scheme, alpha=alpha, seed=seed)
    ]
    return float(np.mean(held))


def test_small_alpha_gives_few_classes_and_large_alpha_nearly_iid() -> None:
    # 20 draws from 1000 balanced examples: 10 * (1 - P(a class is missed)), hypergeometric.
    expected = 10 * (1 - stats.hypergeom(1000, 100, 20).pmf(0))
    assert mean_classes_held("iid") == pytest.approx(expected, abs=0.3)  # sd of the mean of 100 is below 0.1
    assert mean_classes_held("dirichlet", 1e4) == pytest.approx(expected, abs=0.3)
    few, medium = mean_classes_held("dirichlet", 0.1), mean_classes_held("dirichlet", 5.0)
    assert few < 2
    assert few < medium < expected - 0.5


def test_large_alpha_follows_the_class_frequencies() -> None:
    labels = torch.tensor([0] * 6000 + [1] * 3000 + [2] * 1000)
    drawn = draw_clients(labels, clients=1, examples_each=1000, scheme="dirichlet", alpha=1e6, seed=3)[0]
    counts = torch.bincount(labels[drawn], minlength=3).numpy()
    assert stats.chisquare(counts, [600, 300, 100]).pvalue > 0.001


def test_dirichlet_shares_have_the_variance_of_the_distribution() -> None:
    # A share of Dir(alpha p) has the variance p (1 - p) / (alpha + 1); n draws add E[s (1 - s)] / n to it.
    labels, alpha, each = torch.arange(20000) % 2, 3.0, 40
    shares = np.array(
        [
            labels[c].double().mean().item()
            for seed in range(40)
            for c in draw_clients(
                labels, clients=10, examples_each=each, scheme="dirichlet", alpha=alpha, seed=seed
            )
        ]
    )
    expected = 0.25 / (alpha + 1) + 0.25 / each * alpha / (alpha + 1)
    # 400 shares; the relative sd of a variance estimate is about sqrt(2 / 400) = 0.07 (less: bounded values)
    assert shares.var() == pytest.approx(expected, rel=0.25)


def test_class_exhaustion_falls_back_to_what_is_left() -> None:
    labels = torch.tensor([0] * 3 + [1] * 9)
    drawn = draw_clients(labels, clients=3, examples_each=4, scheme="dirichlet", alpha=1e-6, seed=0)
    assert sorted(torch.cat(drawn).tolist()) == list(range(12))


def test_sentences() -> None:
    with pytest.raises(DataError) as few:
        draw_clients(TEN, clients=11, examples_each=100)
    assert str(few.value) == (
        "11 client(s) with 100 example(s) each need 1100, but only 1000 are there: "
        "lower batch_size or clients, or give more data."
    )
    for alpha in (0.0, -1.0, float("nan")):
        with pytest.raises(DataError, match="dirichlet_alpha must be positive"):
            draw_clients(TEN, clients=1, examples_each=1, scheme="dirichlet", alpha=alpha)


def wants_something_else(labels):
    return labels


def beyond_the_end(labels, *, clients, examples_each, seed):
    return [torch.full((examples_each,), len(labels))] * clients


def broken_numbers(labels, *, clients, examples_each, seed):
    return [torch.full((examples_each,), 0.5)] * clients


def plain_lists(labels, *, clients, examples_each, seed):
    return [list(range(examples_each))] * clients


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (wants_something_else, "is called as function"),
        (beyond_the_end, "from 0 to 999"),
        (broken_numbers, "whole numbers"),
    ],
)
def test_a_partition_of_ones_own_that_cannot_be_used_is_one_sentence(function, said) -> None:
    with pytest.raises(DataError, match=said):
        draw_clients(TEN, clients=2, examples_each=3, scheme=f"{__name__}:{function.__name__}")


def test_a_partition_of_ones_own_may_return_lists() -> None:
    held = draw_clients(TEN, clients=2, examples_each=3, scheme=f"{__name__}:plain_lists")
    assert [mine.tolist() for mine in held] == [[0, 1, 2]] * 2
