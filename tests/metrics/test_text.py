"""Text metrics against torchmetrics' ROUGE, a brute-force subsequence search and hand-counted cases."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.functional.text import rouge_score

from seepage.core.errors import DataError
from seepage.metrics import bag_of_words_recall, rouge_1, rouge_2, rouge_l, token_accuracy
from seepage.metrics.text import find_padding, lcs_length

IDS = st.lists(st.integers(0, 3), min_size=6, max_size=6)


def is_subsequence(part: tuple[int, ...], whole: list[int]) -> bool:
    rest = iter(whole)
    return all(word in rest for word in part)


def brute_force_lcs(a: list[int], b: list[int]) -> int:
    """The longest of all subsequences of `a` that also is one of `b`."""
    lengths = range(len(a), -1, -1)
    return next(n for n in lengths if any(is_subsequence(c, b) for c in itertools.combinations(a, n)))


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(IDS, IDS), min_size=1, max_size=3))
def test_common_subsequence_agrees_with_brute_force(pairs: list[tuple[list[int], list[int]]]) -> None:
    recon, truth = torch.tensor([a for a, _ in pairs]), torch.tensor([b for _, b in pairs])
    every = torch.ones_like(recon, dtype=torch.bool)
    assert lcs_length(recon, truth, every, every).tolist() == [brute_force_lcs(a, b) for a, b in pairs]


@settings(max_examples=40, deadline=None)
@given(IDS, IDS)
def test_padding_is_dropped_from_both_before_the_subsequence(a: list[int], b: list[int]) -> None:
    kept_a, kept_b = [x for x in a if x], [x for x in b if x]
    total = len(kept_a) + len(kept_b)
    expected = 2 * brute_force_lcs(kept_a, kept_b) / total if total else 1.0
    assert rouge_l(torch.tensor([a]), torch.tensor([b]), padding_id=0).item() == pytest.approx(expected)


@pytest.mark.parametrize(("ours", "key"), [(rouge_1, "rouge1"), (rouge_2, "rouge2"), (rouge_l, "rougeL")])
def test_rouge_agrees_with_torchmetrics(ours: Any, key: str) -> None:
    recon, truth = torch.randint(0, 12, (8, 15)), torch.randint(0, 12, (8, 15))
    found = ours(recon, truth)
    for i in range(8):
        texts = [" ".join(f"w{token}" for token in row[i].tolist()) for row in (recon, truth)]
        expected = rouge_score(texts[0], texts[1], rouge_keys=key)[f"{key}_fmeasure"]
        assert found[i].item() == pytest.approx(expected.item(), abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(IDS, IDS)
def test_common_pairs_are_counted_as_by_hand(a: list[int], b: list[int]) -> None:
    """Each pair of neighbours of one text takes one of the other's away."""
    kept_a, kept_b = [x for x in a if x], [x for x in b if x]
    pairs, left = list(itertools.pairwise(kept_a)), list(itertools.pairwise(kept_b))
    total, common = len(pairs) + len(left), 0
    for pair in pairs:
        if pair in left:
            left.remove(pair)
            common += 1
    expected = 2 * common / total if total else 0.0
    expected = expected if kept_b else float(not kept_a)
    assert rouge_2(torch.tensor([a]), torch.tensor([b]), padding_id=0).item() == pytest.approx(expected)


def test_token_accuracy_counts_true_words_only() -> None:
    truth = torch.tensor([[4, 5, 6, 0, 0], [4, 5, 6, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
    recon = torch.tensor([[4, 6, 6, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0], [0, 9, 0, 0, 0]])
    torch.testing.assert_close(
        token_accuracy(recon, truth, padding_id=0), torch.tensor([2 / 3, 0.0, 1.0, 0.0], dtype=torch.float64)
    )
    assert token_accuracy(recon, truth).tolist() == pytest.approx([0.8, 0.4, 1.0, 0.8])


def test_bag_of_words_counts_repeated_words_as_often_as_they_occur() -> None:
    truth = torch.tensor([[4, 4, 5, 6], [4, 4, 5, 0]])
    recon = torch.tensor([[6, 5, 4, 7], [4, 4, 4, 0]])
    assert bag_of_words_recall(recon, truth).tolist() == [0.75, 0.75]
    assert bag_of_words_recall(recon, truth, padding_id=0).tolist() == pytest.approx([0.75, 2 / 3])
    assert bag_of_words_recall(truth.flip(1), truth).tolist() == [1.0, 1.0]  # any order


def test_padding_word_is_found_by_its_usual_names() -> None:
    assert find_padding(("a", "[PAD]")) == 1
    assert find_padding(("pad", "a")) is None
    assert find_padding(()) is None


@pytest.mark.parametrize("metric", [token_accuracy, rouge_l, bag_of_words_recall])
def test_embeddings_and_odd_shapes_are_refused(metric) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(DataError, match="decode"):
        metric(torch.rand(2, 3), torch.rand(2, 3))
    with pytest.raises(DataError, match="decode"):
        metric(torch.zeros(2, 3, 1, dtype=torch.int64), torch.zeros(2, 3, 1, dtype=torch.int64))
    with pytest.raises(DataError, match="same space"):
        metric(torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 4, dtype=torch.int64))
    assert metric(torch.zeros(0, 3, dtype=torch.int64), torch.zeros(0, 3, dtype=torch.int64)).shape == (0,)
