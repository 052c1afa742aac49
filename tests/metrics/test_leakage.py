"""Extraction precision and recall on gradients built by hand, labels counted by hand."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seepage.core.errors import DataError
from seepage.core.types import RowCount
from seepage.metrics import (
    ExactRule,
    ExtractionScores,
    extraction_scores,
    label_multiset_accuracy,
)

TRUTH = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.5], [0.2, 0.2, 0.9], [0.8, 0.4, 0.1]])


def test_mixtures_inactive_rows_and_merged_rows() -> None:
    # 10 rows: 2 inactive, 3 hold example 0, 1 holds example 2, 4 hold mixtures (two of them the same)
    candidates = torch.stack(
        [TRUTH[0], TRUTH[2], (TRUTH[0] + TRUTH[1]) / 2, TRUTH.mean(0), TRUTH[:3].mean(0)]
    )
    scores = extraction_scores(candidates, torch.tensor([3, 1, 2, 1, 1]), RowCount(total=10, active=8), TRUTH)
    assert scores == ExtractionScores(precision_all=0.4, precision_active=0.5, recall=0.5, active=0.8)


def test_many_rows_of_one_example_have_high_precision_and_low_recall() -> None:
    # the case for which the paper defines recall next to precision (Sec. 8.1)
    candidates = TRUTH[1].repeat(5, 1)
    scores = extraction_scores(candidates, None, RowCount(total=5, active=5), TRUTH)
    assert scores == ExtractionScores(precision_all=1.0, precision_active=1.0, recall=0.25, active=1.0)


def test_duplicate_true_examples_are_both_extracted_by_one_row() -> None:
    truth = TRUTH[[0, 0, 1, 2]]
    scores = extraction_scores(TRUTH[:1], torch.tensor([1]), RowCount(total=4, active=2), truth)
    assert scores == ExtractionScores(precision_all=0.25, precision_active=0.5, recall=0.5, active=0.5)


def test_agreement_with_a_layer_whose_gradient_is_known() -> None:
    # ReLU layer, one gradient row per neuron: row = sum of the inputs that activate it, bias = how many do
    activates = torch.tensor(
        [[1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1.0]]
    )
    bias = activates.sum(1)
    active = bias > 0
    candidates = (activates @ TRUTH)[active] / bias[active, None]
    alone = bias == 1
    scores = extraction_scores(candidates, None, RowCount(total=6, active=int(active.sum())), TRUTH)
    assert scores.precision_all == int(alone.sum()) / 6
    assert scores.precision_active == int(alone.sum()) / 5
    assert scores.recall == int(activates[alone].any(0).sum()) / 4
    assert scores.active == 5 / 6


def test_tolerance_is_in_units_of_the_data_range() -> None:
    rows = RowCount(total=4, active=4)
    off = TRUTH.clone()
    off[1, 2] += 0.002
    wider = ExactRule(unit=torch.tensor([1.0, 1.0, 5.0]))
    assert extraction_scores(off, None, rows, TRUTH).recall == 0.75
    assert extraction_scores(off, None, rows, TRUTH, rule=ExactRule(tolerance=0.003)).recall == 1.0
    assert extraction_scores(off * 255, None, rows, TRUTH * 255, rule=ExactRule(unit=255.0)).recall == 0.75
    assert extraction_scores(off, None, rows, TRUTH, rule=wider).recall == 1.0
    # a wide column must not hide the others: by the widest column's range alone, both rows would count
    scale = torch.tensor([1.0, 1e6, 1.0])
    assert (
        extraction_scores(off * scale, None, rows, TRUTH * scale, rule=ExactRule(unit=scale)).recall == 0.75
    )


def test_token_ids_count_only_when_the_same_whatever_the_tolerance() -> None:
    truth = torch.arange(4000).reshape(2, 2000)
    near = truth.clone()
    near[0, 7] += 1  # 1 of 2000 positions, below the tolerance as a fraction
    scores = extraction_scores(near, None, RowCount(total=2, active=2), truth, rule=ExactRule(unit=100.0))
    assert scores.recall == scores.precision_all == 0.5


def test_no_candidates_and_no_active_rows_score_zero() -> None:
    none = TRUTH[:0]
    scores = extraction_scores(none, None, RowCount(total=10, active=4), TRUTH)
    assert scores == ExtractionScores(precision_all=0.0, precision_active=0.0, recall=0.0, active=0.4)
    scores = extraction_scores(none, torch.zeros(0), RowCount(total=10, active=0), TRUTH)
    assert scores == ExtractionScores(precision_all=0.0, precision_active=0.0, recall=0.0, active=0.0)


@pytest.mark.parametrize(
    ("candidates", "support", "rows", "truth", "reason"),
    [
        (TRUTH, None, RowCount(total=0, active=0), TRUTH, "impossible"),
        (TRUTH, None, RowCount(total=4, active=5), TRUTH, "impossible"),
        (TRUTH, torch.ones(3), RowCount(total=9, active=9), TRUTH, "one row count each"),
        (TRUTH, torch.tensor([1, 1, 1, -1]), RowCount(total=9, active=9), TRUTH, "negative"),
        (TRUTH, torch.tensor([9, 1, 1, 1]), RowCount(total=20, active=11), TRUTH, "claim 12 rows"),
        (TRUTH * torch.nan, None, RowCount(total=9, active=9), TRUTH, "NaN"),
        (TRUTH, None, RowCount(total=9, active=9), TRUTH[:0], "no true examples"),
    ],
)
def test_impossible_counts_are_refused(candidates, support, rows, truth, reason) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(DataError, match=reason):
        extraction_scores(candidates, support, rows, truth)


LABELS = st.lists(st.integers(0, 4), max_size=12)


@given(inferred=LABELS, true=LABELS.filter(bool))
def test_label_accuracy_agrees_with_multisets(inferred: list[int], true: list[int]) -> None:
    counts = [torch.bincount(torch.tensor(x, dtype=torch.int64), minlength=5) for x in (inferred, true)]
    found = (Counter(inferred) & Counter(true)).total()
    assert label_multiset_accuracy(*counts) == pytest.approx(found / max(len(inferred), len(true)))


def test_impossible_label_counts_are_refused() -> None:
    good = torch.tensor([1, 2])
    for inferred, true, reason in [
        (torch.tensor([1, 2, 3]), good, "classes"),
        (torch.tensor([-1, 2]), good, "zero or more"),
        (torch.tensor([float("nan"), 2]), good, "zero or more"),
        (good, torch.tensor([0, 0]), "all zero"),
    ]:
        with pytest.raises(DataError, match=reason):
            label_multiset_accuracy(inferred, true)
