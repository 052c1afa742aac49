"""Assignment against all permutations, distances against plain differences."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from seepage.core.errors import DataError
from seepage.metrics import assign, matching, nearest_truth
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


def test_what_is_the_same_example_is_paired_before_the_total_error_is_looked_at() -> None:
    """Whoever says so: each candidate is nearest to another example than the one that it is called."""
    values = torch.tensor([[0.0], [1.0]])
    assert assign(values, values).candidate.tolist() == [0, 1]
    found = assign(values, values, exact=torch.tensor([[False, True], [False, False]]))
    assert found.candidate.tolist() == [1, 0] and found.mse.tolist() == [1.0, 1.0]


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
@pytest.mark.parametrize(("noise", "digits"), [(1e-6, 6), (3e-5, 10), (1e-3, 10), (1e-2, 10)])
def test_small_distances_survive_cancellation(outlier: float, noise: float, digits: int) -> None:
    """A third of the digits may be lost, and no more."""
    truth = torch.randn(6, 40, dtype=torch.float64)
    truth[0] *= outlier  # moves the centre far away from all the others
    candidates = truth[1:] + noise * torch.randn(5, 40, dtype=torch.float64)
    expected = cdist(candidates.numpy(), truth.numpy(), "sqeuclidean")
    np.testing.assert_allclose(squared_distances(candidates, truth).numpy(), expected, rtol=10.0**-digits)


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
    flat = candidates.flatten(1).double(), truth.flatten(1).double()
    np.testing.assert_allclose(squared_distances(*flat), cdist(*flat, "sqeuclidean"), rtol=1e-9, atol=1e-12)
    assert torch.equal(hamming_distances(*ids), whole_ids)


def test_no_more_than_a_block_is_held_and_no_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """7 candidates, 5 examples. Every tensor that is made wide, with its number of elements."""
    sizes: list[int] = []

    def counted(values: torch.Tensor) -> torch.Tensor:
        sizes.append(values.numel())
        return wide(values)

    def held(function: Callable[..., object], block: int, *inputs: torch.Tensor) -> list[int]:
        monkeypatch.setattr(matching, "BLOCK", block)
        sizes.clear()
        function(*inputs)
        return sizes.copy()

    wide = matching.wide
    monkeypatch.setattr(matching, "wide", counted)
    ids = torch.zeros(7, 9, dtype=torch.int64), torch.ones(5, 9, dtype=torch.int64)
    assert held(hamming_distances, 100, *ids) == [90, 90, 90, 45]  # two candidates against all 45 ids at once
    assert held(hamming_distances, 44, *ids) == [45] * 7  # one has to be
    far = 10.0 + torch.rand(7, 6), torch.rand(5, 6)  # no pair is close enough to be computed again
    assert held(squared_distances, 30, *far) == [35, *[10, 14] * 3]  # (7 + 5) rows, two columns at a time
    assert held(squared_distances, 11, *far) == [35, *[5, 7] * 6]
    # nor does it come close by an offset of each column, for the data are centred
    offset = 1e6 * torch.arange(6, dtype=torch.float64)
    assert held(squared_distances, 30, *(part + offset for part in far)) == [35, *[10, 14] * 3]
    # a pair whose distance is 5e-5 of the norms keeps its digits, one of 5e-7 is computed again
    corners = torch.tensor([[1.0] * 6, [-1.0] * 6], dtype=torch.float64)
    assert held(squared_distances, 30, 1.01 * corners[:1], corners) == [2, 12, 6]
    assert held(squared_distances, 30, 1.001 * corners[:1], corners) == [2, 12, 6, 6, 6]
    with pytest.raises(ValueError, match="longer"):  # no column is left out
        held(squared_distances, 8, torch.rand(2, 2), torch.rand(2, 4))
    copies = torch.rand(6, 4), torch.arange(6)
    pairs = [matching._squared_error, copies[0], copies[0], copies[1], copies[1]]
    assert held(matching._paired, 9, *pairs) == [8] * 6  # two pairs of four values, on either side
    assert held(matching._paired, 3, *pairs) == [4] * 12


def test_results_are_where_the_truth_is_and_not_on_the_default_device() -> None:
    """As on an accelerator: what is made without a device lands elsewhere, here where nothing is kept."""
    candidates, truth = torch.tensor([[5.0], [1.0]]), torch.tensor([[1.0], [2.5], [5.5]])
    no_candidates = candidates[:0]
    with torch.device("meta"):
        found, none = assign(candidates, truth), assign(no_candidates, truth)
        there, nothing = nearest_truth(candidates, truth), nearest_truth(no_candidates, truth)
    assert found.candidate.tolist() == [1, -1, 0] and found.mse.tolist() == [0.0, float("inf"), 0.25]
    assert none.candidate.tolist() == [-1] * 3 and none.mse.tolist() == [float("inf")] * 3
    assert [part.tolist() for part in there] == [[2, 0], [0.5, 0.0]]
    assert [part.tolist() for part in nothing] == [[], []]
    results = [found.candidate, none.candidate, there[0], nothing[0]]
    assert {part.dtype for part in results} == {torch.int64}
    errors = [found.mse, none.mse, there[1], nothing[1]]
    assert {part.dtype for part in errors} == {torch.float64}


def test_fewer_candidates_than_truth_and_none() -> None:
    truth = torch.tensor([[0.0], [10.0]])
    one = assign(torch.tensor([[9.0]]), truth)
    assert one.candidate.tolist() == [-1, 0] and one.mse.tolist() == [float("inf"), 1.0]
    none = assign(torch.zeros(0, 1), truth)
    assert none.candidate.tolist() == [-1, -1] and torch.isinf(none.mse).all()
    assert [len(part) for part in nearest_truth(torch.zeros(0, 1), truth)] == [0, 0]


def test_nearest_matches_brute_force() -> None:
    candidates, truth = torch.randn(9, 3, 4), torch.randn(6, 3, 4)
    distance = cdist(candidates.flatten(1).double(), truth.flatten(1).double())
    index, error = nearest_truth(candidates, truth)
    assert index.tolist() == distance.argmin(1).tolist()
    for i, j in enumerate(index.tolist()):
        assert error[i].item() == pytest.approx((candidates[i] - truth[j]).abs().max().item(), rel=1e-6)


def test_values_whose_squares_overflow_still_get_an_assignment() -> None:
    candidates = torch.tensor([[1e200], [1.0]], dtype=torch.float64)
    truth = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    found = assign(candidates, truth)
    assert sorted(found.candidate.tolist()) == [0, 1]
    # too large for any number, for the sum of its parts (infinity less infinity), and for the bound alone
    assert squared_distances(1e200 * truth, truth).tolist() == [[1e300] * 2] * 2
    assert squared_distances(1e200 * truth, 1e199 * truth).tolist() == [[1e300] * 2] * 2
    assert squared_distances(1e151 * truth, truth).tolist() == [[1e300] * 2] * 2
    assert squared_distances(1e149 * truth, truth).tolist() == pytest.approx(
        np.array([[1e298] * 2, [4e298] * 2]), rel=1e-12
    )


@pytest.mark.parametrize("function", [assign, nearest_truth])
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


def test_matching_with_no_true_examples_is_refused_in_these_words() -> None:
    with pytest.raises(DataError) as refused:
        assign(torch.zeros(1, 1), torch.zeros(0, 1))
    assert str(refused.value) == "there are no true examples to match candidates with: give at least one."
