"""Exact pairs first: against every possible assignment, and against scipy's largest bipartite matching."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching

from seepage.core.errors import DataError
from seepage.metrics import ExactRule, assign
from seepage.metrics.assignment import best_pairs


def every_pairing(allowed: np.ndarray, row: int = 0, used: frozenset[int] = frozenset()) -> Iterator[list]:
    """Every set of allowed pairs in which no row and no column is used twice."""
    if row == len(allowed):
        yield []
        return
    yield from every_pairing(allowed, row + 1, used)
    for column in np.flatnonzero(allowed[row]).tolist():
        if column not in used:
            for rest in every_pairing(allowed, row + 1, used | {column}):
                yield [(row, column), *rest]


def worth(pairs: list[tuple[int, int]], errors: np.ndarray, exact: np.ndarray) -> tuple[int, int, float]:
    """To be minimised in this order."""
    total = sum(errors[pair] for pair in pairs)
    return -sum(bool(exact[pair]) for pair in pairs), -len(pairs), round(float(total), 9)


def cell_with_duplicates(rng: np.random.Generator, most: int) -> tuple[np.ndarray, np.ndarray]:
    """(k, 2) candidates and (n, 2) examples: duplicates, near-duplicates, copies, mixtures and noise."""
    k, n = rng.integers(1, most + 1, 2)
    truth = rng.integers(0, max(2, most // 3), (n, 2)) + rng.choice([0.0, 0.0004, 0.002], (n, 1))
    candidates = truth[rng.integers(0, n, k)] + rng.choice([0.0, 0.0005, 0.3], (k, 1))
    mixed = rng.random(k) < 0.3
    candidates[mixed] = (truth[rng.integers(0, n, k)] + truth[rng.integers(0, n, k)])[mixed] / 2
    return candidates, truth


@pytest.mark.parametrize("share_allowed", [1.0, 0.6])
def test_pairs_are_the_best_of_all_by_exact_pairs_then_number_then_error(share_allowed: float) -> None:
    rng = np.random.default_rng(0)
    for _ in range(150):
        candidates, truth = cell_with_duplicates(rng, 5)
        errors = ((candidates[:, None] - truth) ** 2).sum(2)
        exact = np.abs(candidates[:, None] - truth).max(2) <= 0.001
        allowed = rng.random(errors.shape) < share_allowed
        rows, columns = best_pairs(errors, exact=exact, allowed=allowed)
        found = list(zip(rows.tolist(), columns.tolist(), strict=True))
        assert len(set(rows.tolist())) == len(set(columns.tolist())) == len(found)
        assert allowed[rows, columns].all()
        best = min(worth(pairs, errors, exact) for pairs in every_pairing(allowed))
        assert worth(found, errors, exact) == pytest.approx(best)


def test_as_many_exact_pairs_as_the_largest_matching_in_a_thousand_cells() -> None:
    rng, rule, lost = np.random.default_rng(1), ExactRule(), 0
    for _ in range(1000):
        candidates, truth = (torch.as_tensor(part) for part in cell_with_duplicates(rng, 24))
        exact = rule.every(candidates, truth)
        most = int((maximum_bipartite_matching(csr_matrix(exact.numpy())) >= 0).sum())
        found = assign(candidates, truth, exact=exact)
        made = found.candidate[found.matched]
        assert len(set(made.tolist())) == len(made) == min(len(candidates), len(truth))
        assert int(exact[made, found.matched.nonzero().squeeze(1)].sum()) == most
        plain = assign(candidates, truth)
        lost += most - int(exact[plain.candidate[plain.matched], plain.matched.nonzero().squeeze(1)].sum())
    assert lost > 0  # the least total error alone gives exact pairs away in these cells


@pytest.mark.parametrize("far", [1e9, 1e150, 1e300])
@pytest.mark.parametrize("fair", [1, 5, 6, 9])
def test_a_diverged_candidate_gets_what_the_others_leave(far: float, fair: int) -> None:
    """In one sum with the others it would decide which example is left to it; with one seed of ten or so the
    same one as they do."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        errors = rng.random((fair, 6)) * 1e-3
        diverged = far * (1 + rng.random((2, 6)))
        rows, columns = best_pairs(np.concatenate([diverged, errors]))
        kept = rows >= 2
        expected = linear_sum_assignment(errors)
        assert errors[rows[kept] - 2, columns[kept]].sum() == pytest.approx(errors[expected].sum(), rel=1e-12)
        assert len(rows) == min(6, fair + 2) == len(set(columns.tolist()))


def test_a_diverged_candidate_is_one_by_what_it_may_be_paired_with() -> None:
    """Neither what is not allowed, nor another one's exact pair, nor a number near 1 sets the scale."""
    allowed = np.array([[True, True, False]] * 2)
    errors = np.array([[1e-9, 2e-9, 5.0], [1e3, 2e3, 0.0]])  # in one sum the second would get column 0
    rows, columns = best_pairs(errors, allowed=allowed)
    assert dict(zip(rows.tolist(), columns.tolist(), strict=True)) == {0: 0, 1: 1}
    rows, columns = best_pairs(errors[:, :2])
    assert dict(zip(rows.tolist(), columns.tolist(), strict=True)) == {0: 0, 1: 1}
    errors = np.array([[0.0, 1.0, 1.0], [3e-3, 1e-3, 2e-3], [1e12, 1e12, 2e12]])
    rows, columns = best_pairs(errors, exact=errors == 0)
    assert dict(zip(rows.tolist(), columns.tolist(), strict=True)) == {0: 0, 1: 1, 2: 2}


@pytest.mark.parametrize(("more", "first"), [(1.0, 0), (1 + 2**-20, 1)])
def test_errors_are_summed_that_differ_by_no_more_than_half_their_digits(more: float, first: int) -> None:
    """2^26 is the root of what a float tells apart. In one sum the second candidate saves 1 by the second
    example, which is worth 0.5 to the first; beyond that factor the first chooses alone."""
    far = 2.0**26 * more
    rows, columns = best_pairs(np.array([[1.0, 0.5], [far, far - 1]]))
    assert dict(zip(rows.tolist(), columns.tolist(), strict=True)) == {0: first, 1: 1 - first}


def test_of_equal_candidates_the_first_are_taken() -> None:
    """On every machine, however it sorts."""
    errors = np.tile([[2.0], [1.0]], (250, 3))  # each second one is better, and all of these are alike
    rows, columns = best_pairs(errors)
    assert sorted(rows.tolist()) == [1, 3, 5] and sorted(columns.tolist()) == [0, 1, 2]


def test_the_exact_pairs_must_cover_all_pairs() -> None:
    with pytest.raises(DataError) as refused:
        assign(torch.zeros(2, 1), torch.zeros(3, 1), exact=torch.zeros(3, 2, dtype=torch.bool))
    assert str(refused.value) == (
        "exact has shape (3, 2) for 2 candidates and 3 true examples: give one entry for each pair."
    )


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0)])
def test_without_candidates_or_examples_there_are_no_pairs(shape: tuple[int, int]) -> None:
    nothing = np.zeros(shape, np.bool_)
    for options in ({}, {"exact": nothing, "allowed": nothing}):
        assert [part.tolist() for part in best_pairs(np.zeros(shape), **options)] == [[], []]


def test_an_exact_pair_is_made_before_any_other_however_far_the_rest_lies() -> None:
    """The first candidate is the first example and far from the second; the other is near both."""
    errors = np.array([[0.0, 1e12], [1e-3, 2e-3]])
    for scale in (1.0, 1e-9, 1e9):
        rows, columns = best_pairs(scale * errors, exact=errors == 0)
        assert dict(zip(rows.tolist(), columns.tolist(), strict=True)) == {0: 0, 1: 1}


def test_an_exact_pair_is_not_given_up_for_two_that_are_nearer() -> None:
    """The second candidate may have the first example only, of which the first is a copy."""
    allowed = np.array([[True, True], [True, False]])
    exact = np.array([[True, False], [False, False]])
    rows, columns = best_pairs(np.array([[0.5, 0.1], [0.1, 0.1]]), exact=exact, allowed=allowed)
    assert (rows.tolist(), columns.tolist()) == ([0], [0])


def test_a_chain_of_examples_that_several_candidates_match() -> None:
    """Two exact pairs can be made in three ways. That the second candidate may stay without its exact pair
    shows only two steps further on: the first wants its example, and the third the first one's other."""
    errors = np.array([[0.4, 0.7, 0.5], [0.5, 0.3, 0.9], [0.9, 0.6, 0.2]])
    exact = np.array([[True, False, True], [True, False, False], [False, False, True]])
    rows, columns = best_pairs(errors, exact=exact)
    assert dict(zip(rows.tolist(), columns.tolist(), strict=True)) == {0: 0, 1: 1, 2: 2}


@pytest.mark.parametrize("share", [0.7, 0.3])
def test_a_large_problem_has_the_pairs_of_a_small_one(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns that must be used are made cheap there, for a square of all columns would fill the memory.
    Without any exact pair, few allowed ones alone give a column its price."""
    rng = np.random.default_rng(3)
    for trial in range(150):
        candidates, truth = cell_with_duplicates(rng, 9)
        errors = ((candidates[:, None] - truth) ** 2).sum(2) + rng.random(
            (len(candidates), len(truth))
        ) * 1e-3
        exact = (np.abs(candidates[:, None] - truth).max(2) <= 0.001) & (trial % 2 == 0)
        allowed = rng.random(errors.shape) < share
        small = best_pairs(errors, exact=exact, allowed=allowed)
        with monkeypatch.context() as patched:
            patched.setattr("seepage.metrics.assignment._LARGEST", 0)
            large = best_pairs(errors, exact=exact, allowed=allowed)
        assert worth(list(zip(*map(np.ndarray.tolist, large), strict=True)), errors, exact) == pytest.approx(
            worth(list(zip(*map(np.ndarray.tolist, small), strict=True)), errors, exact)
        )
