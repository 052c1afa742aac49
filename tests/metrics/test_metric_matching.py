"""Assignment against all permutations, distances against plain differences."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from seepage.errors import DataError
from seepage.metrics import assign, matching, nearest_candidate, nearest_truth
from seepage.metrics.matching import hamming_distances, squared_distances


def best_total_by_permutations(cost: np.ndarray) -> float:
    """Least total of a one-to-one pairing of rows with columns, by trying every one."""
    if cost.shape[0] > cost.shape[1]:
        cost = cost.T
    rows = range(cost.shape[0])
    return min(
        sum(cost[i, j] for i, j in zip(rows, columns, strict=True))
        for columns in itertools.permutations(range(cost.shape[1]), cost.shape[0])
    )


@settings(max_examples=60, deadline=None)
@given(k=st.integers(1, 6), n=st.integers(1, 6), d=st.integers(1, 4), seed=st.integers(0, 10_000))
def test_assignment_has_the_least_total_of_all_permutations(k: int, n: int, d: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    candidates, truth = torch.randn(k, d, generator=generator), torch.randn(n, d, generator=generator)
    found = assign(candidates, truth)
    cost = cdist(candidates.double().numpy(), truth.double().numpy(), "sqeuclidean") / d
    used = found.candidate[found.matched]
    assert len(used) == min(k, n) == len(set(used.tolist()))
    assert float(found.mse[found.matched].sum()) == pytest.approx(best_total_by_permutations(cost), rel=1e-9)
    for j, i in enumerate(found.candidate.tolist()):
        assert found.mse[j].item() == (pytest.approx(cost[i, j], rel=1e-9) if i >= 0 else float("inf"))


@settings(max_examples=40, deadline=None)
@given(k=st.integers(1, 5), n=st.integers(1, 5), seed=st.integers(0, 10_000))
def test_token_assignment_minimises_differing_positions(k: int, n: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    candidates = torch.randint(0, 3, (k, 4), generator=generator)
    truth = torch.randint(0, 3, (n, 4), generator=generator)
    cost = cdist(candidates.numpy(), truth.numpy(), "hamming")
    assert np.allclose(hamming_distances(candidates, truth).numpy(), cost)
    found = assign(candidates, truth)
    assert float(found.mse[found.matched].sum()) == pytest.approx(best_total_by_permutations(cost))


def test_tokens_are_not_compared_by_the_size_of_their_ids() -> None:
    # by squared id difference candidate 1 would be nearer; by words candidate 0 is
    candidates, truth = torch.tensor([[7, 8, 900], [6, 7, 8]]), torch.tensor([[7, 8, 9]])
    assert assign(candidates, truth).candidate.tolist() == [0]
    assert nearest_candidate(candidates, truth)[0].tolist() == [0]
    assert nearest_truth(candidates, truth)[1].tolist() == [1.0, 1.0]
    assert nearest_truth(truth, truth)[1].tolist() == [0.0]


def test_shuffled_copies_are_found_with_an_error_of_exactly_zero() -> None:
    truth = (
        torch.rand(20, 3, 16, 16) + 1e4
    )  # a large offset, where |c|^2 + |t|^2 - 2ct loses everything in float32
    order = torch.randperm(20)
    found = assign(truth[order], truth)
    assert torch.equal(order[found.candidate], torch.arange(20))
    assert found.mse.abs().max() == 0


@pytest.mark.parametrize("outlier", [1.0, 1e9])
def test_small_distances_survive_cancellation(outlier: float) -> None:
    truth = torch.randn(6, 40, dtype=torch.float64)
    truth[0] *= outlier  # moves the centre far away from all the others
    candidates = truth[1:] + 1e-6 * torch.randn(5, 40, dtype=torch.float64)
    expected = cdist(candidates.numpy(), truth.numpy(), "sqeuclidean")
    np.testing.assert_allclose(squared_distances(candidates, truth).numpy(), expected, rtol=1e-6)


def test_blocks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    candidates, truth = torch.randn(7, 2, 9), torch.randn(5, 2, 9)
    candidates[2] = truth[4]
    whole = assign(candidates, truth)
    ids = torch.randint(0, 4, (7, 9)), torch.randint(0, 4, (5, 9))
    whole_ids = hamming_distances(*ids)
    monkeypatch.setattr(matching, "BLOCK", 30)
    parts = assign(candidates, truth)
    assert torch.equal(parts.candidate, whole.candidate) and torch.allclose(parts.mse, whole.mse, rtol=1e-12)
    assert parts.mse[4] == 0
    assert torch.equal(hamming_distances(*ids), whole_ids)


def test_fewer_candidates_than_truth_and_none() -> None:
    truth = torch.tensor([[0.0], [10.0]])
    one = assign(torch.tensor([[9.0]]), truth)
    assert one.candidate.tolist() == [-1, 0] and one.mse.tolist() == [float("inf"), 1.0]
    none = assign(torch.zeros(0, 1), truth)
    assert none.candidate.tolist() == [-1, -1] and torch.isinf(none.mse).all()
    assert [len(part) for part in nearest_truth(torch.zeros(0, 1), truth)] == [0, 0]
    index, error = nearest_candidate(torch.zeros(0, 1), truth)
    assert index.tolist() == [-1, -1] and torch.isinf(error).all()


def test_nearest_matches_brute_force_both_ways() -> None:
    candidates, truth = torch.randn(9, 3, 4), torch.randn(6, 3, 4)
    distance = cdist(candidates.flatten(1).double(), truth.flatten(1).double())
    index, error = nearest_truth(candidates, truth)
    assert index.tolist() == distance.argmin(1).tolist()
    back, back_error = nearest_candidate(candidates, truth)
    assert back.tolist() == distance.argmin(0).tolist()
    for i, j in enumerate(index.tolist()):
        assert error[i].item() == pytest.approx((candidates[i] - truth[j]).abs().max().item(), rel=1e-6)
    for j, i in enumerate(back.tolist()):
        assert back_error[j].item() == pytest.approx((candidates[i] - truth[j]).abs().max().item(), rel=1e-6)


def test_values_whose_squares_overflow_still_get_an_assignment() -> None:
    candidates = torch.tensor([[1e200], [1.0]], dtype=torch.float64)
    found = assign(candidates, torch.tensor([[1.0], [2.0]], dtype=torch.float64))
    assert sorted(found.candidate.tolist()) == [0, 1]


@pytest.mark.parametrize("function", [assign, nearest_truth, nearest_candidate])
@pytest.mark.parametrize(
    ("candidates", "truth", "reason"),
    [
        (torch.tensor([[float("nan")]]), torch.zeros(1, 1), "NaN"),
        (torch.tensor([[float("inf")]]), torch.zeros(1, 1), "infinite"),
        (torch.zeros(1, 1), torch.zeros(0, 1), "no true examples"),
        (torch.zeros(1, 2), torch.zeros(1, 3), "same space"),
        (torch.zeros(1, 2), torch.zeros(1, 2, dtype=torch.int64), "token ids"),
        (torch.zeros(3), torch.zeros(3), "unsqueeze"),
        (torch.zeros(1, 0), torch.zeros(1, 0), "no values"),
        (torch.zeros(1, 2, dtype=torch.complex64), torch.zeros(1, 2), "complex|convert"),
    ],
)
def test_bad_input_is_refused_in_words(function, candidates, truth, reason) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(DataError, match=reason):
        function(candidates, truth)
