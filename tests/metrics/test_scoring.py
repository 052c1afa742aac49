"""Exact matches, feature and table scores, and which scores an example of each kind gets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import root_mean_squared_error
from sklearn.metrics.pairwise import cosine_similarity

from seepage.core.errors import DataError
from seepage.core.types import INPUT_SPACE, InputSpec, Modality
from seepage.metrics import (
    EXACT_TOLERANCE,
    METRICS,
    ExactRule,
    column_spread,
    cosine,
    error_unit,
    exact_match,
    exact_rule,
    psnr,
    relative_error,
    rmse,
    score_examples,
    ssim,
    token_accuracy,
)

PICTURES = InputSpec(modality=Modality.IMAGE, shape=(1, 9, 9), num_classes=2)
ROWS = InputSpec(modality=Modality.TABULAR, shape=(3,), num_classes=2, value_range=None)
TEXTS = InputSpec(
    modality=Modality.TEXT, shape=(4,), num_classes=2, value_range=None, tokens=("<pad>", "a", "b")
)


@given(
    pixels=st.lists(st.integers(0, 255), min_size=1, max_size=20),
    error=st.floats(-EXACT_TOLERANCE, EXACT_TOLERANCE),
)
def test_an_exact_match_is_the_same_picture_in_8_bits(pixels: list[int], error: float) -> None:
    truth = torch.tensor([pixels], dtype=torch.float64) / 255
    recon = truth + error
    if exact_match(recon, truth).item():
        assert torch.equal((recon * 255).round(), torch.tensor([pixels], dtype=torch.float64))
    assert not exact_match(truth + 1 / 255, truth).item()  # one step off is another picture


def test_exact_match_scales_with_the_range_and_takes_one_per_column() -> None:
    truth = torch.zeros(3, 2)
    recon = torch.tensor([[0.0, 0.0009], [0.0, 0.0011], [0.1, 0.0]])
    assert exact_match(recon, truth).tolist() == [True, False, False]
    assert exact_match(recon * 255, truth, data_range=255.0).tolist() == [True, False, False]
    assert exact_match(recon, truth, data_range=torch.tensor([200.0, 1.0])).tolist() == [True, False, True]
    assert exact_match(recon, truth, tolerance=0.0).tolist() == [False, False, False]
    ids = torch.tensor([[1, 2], [3, 4]])
    assert exact_match(ids, torch.tensor([[1, 2], [3, 5]]), tolerance=10.0).tolist() == [True, False]
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(DataError, match="tolerance"):
            exact_match(recon, truth, tolerance=wrong)


def test_feature_scores_agree_with_numpy_and_scikit_learn() -> None:
    recon, truth = torch.randn(5, 2, 7), torch.randn(5, 2, 7)
    r, t = recon.flatten(1).numpy(), truth.flatten(1).numpy()
    expected = np.linalg.norm(r - t, axis=1) / np.linalg.norm(t, axis=1)
    np.testing.assert_allclose(relative_error(recon, truth).numpy(), expected, rtol=1e-5)
    np.testing.assert_allclose(cosine(recon, truth).numpy(), np.diag(cosine_similarity(r, t)), atol=1e-6)


def test_no_rounding_takes_a_cosine_beyond_one() -> None:
    """A threshold or a chart ends at 1: of 200 copies a quarter would lie above it by a digit."""
    truth = torch.randn(200, 7)
    assert cosine(truth, truth).max() == 1 and cosine(-truth, truth).min() == -1


def test_zero_features_have_documented_finite_scores() -> None:
    truth = torch.tensor([[0.0, 0.0], [0.0, 0.0], [3.0, 4.0], [1e-30, 0.0]])
    recon = torch.tensor([[0.0, 0.0], [5.0, 0.0], [0.0, 0.0], [2e-30, 0.0]])
    assert relative_error(recon, truth).tolist() == pytest.approx([0.0, 1.0, 1.0, 1.0])
    assert cosine(recon, truth).tolist() == pytest.approx([1.0, 0.0, 0.0, 1.0])


def test_row_errors_are_in_units_of_each_columns_spread() -> None:
    truth = torch.randn(6, 3) * torch.tensor([1.0, 1e4, 1e-3])
    recon = truth + torch.randn(6, 3) * torch.tensor([1.0, 1e4, 1e-3])
    scale = column_spread(ROWS, truth)
    np.testing.assert_allclose(scale.numpy(), truth.double().numpy().std(0), rtol=1e-9)
    expected = root_mean_squared_error(
        (truth / scale).double().T.numpy(), (recon / scale).double().T.numpy(), multioutput="raw_values"
    )
    np.testing.assert_allclose(rmse(recon, truth, scale=scale).numpy(), expected, rtol=1e-5)
    half = torch.cat([truth[:3], recon[3:]])
    assert exact_rule(ROWS, truth).pairs(half, truth).tolist() == [True] * 3 + [False] * 3
    assert exact_rule(ROWS, truth).pairs(half[:0], truth[:0]).tolist() == []


def test_column_spread_prefers_the_specs_and_never_is_zero() -> None:
    spec = InputSpec(modality=Modality.TABULAR, shape=(3,), num_classes=2, spread=(2.0, 0.0, 0.0))
    assert column_spread(spec, torch.tensor([[9.0, -4.0, 0.0]])).tolist() == [2.0, 4.0, 1.0]
    assert column_spread(ROWS, torch.tensor([[9.0, -4.0, 0.0]])).tolist() == [9.0, 4.0, 1.0]


def test_pictures_are_scored_with_the_specs_range_or_their_own() -> None:
    truth = torch.rand(3, 1, 9, 9)
    recon = torch.cat([truth[:1], truth[1:] + 0.1])
    scores = score_examples(recon, truth, PICTURES, space=INPUT_SPACE)
    assert list(scores) == ["mse", "psnr", "ssim", "exact"]
    assert scores["exact"].tolist() == [1.0, 0.0, 0.0]
    assert torch.equal(scores["ssim"], ssim(recon, truth, data_range=1.0))
    bytes_spec = InputSpec(modality=Modality.IMAGE, shape=(1, 9, 9), num_classes=2, value_range=(0.0, 255.0))
    in_bytes = score_examples(recon * 255, truth * 255, bytes_spec, space=INPUT_SPACE)
    for name in ("psnr", "ssim", "exact"):
        torch.testing.assert_close(in_bytes[name], scores[name], rtol=1e-4, atol=1e-4)
    unknown = InputSpec(modality=Modality.IMAGE, shape=(1, 9, 9), num_classes=2, value_range=None)
    own = score_examples(recon, truth, unknown, space=INPUT_SPACE)
    width = float(truth.max()) - float(truth.min())
    torch.testing.assert_close(own["psnr"], psnr(recon, truth, data_range=width))
    # the matched examples alone, judged by the range of all
    part = score_examples(recon[1:2], truth[1:2], unknown, space=INPUT_SPACE, reference=truth)
    torch.testing.assert_close(part["psnr"], own["psnr"][1:2])


def test_tiny_and_flattened_pictures_have_no_ssim() -> None:
    for shape in ((1, 2, 2), (16,)):
        spec = InputSpec(modality=Modality.IMAGE, shape=shape, num_classes=2)
        scores = score_examples(torch.rand(2, *shape), torch.rand(2, *shape), spec, space=INPUT_SPACE)
        assert list(scores) == ["mse", "psnr", "exact"]


def test_a_wide_column_does_not_make_the_others_exact() -> None:
    truth = torch.tensor([[30.0, 200_000.0, 1.0], [50.0, 400_000.0, 0.0], [41.0, 900_000.0, 1.0]])
    recon = truth.clone()
    recon[1, 0] += 2.0  # two years of age: far below 0.001 of the widest column's range
    scores = score_examples(recon, truth, ROWS, space=INPUT_SPACE)
    assert list(scores) == ["rmse", "exact"]
    assert scores["exact"].tolist() == [1.0, 0.0, 1.0]
    assert scores["rmse"][1].item() == pytest.approx(2 / truth[:, 0].numpy().std() / 3**0.5, rel=1e-6)
    # nor does a value range of the whole table, which no column's error is counted in
    ranged = InputSpec(modality=Modality.TABULAR, shape=(3,), num_classes=2, value_range=(0.0, 1e6))
    assert torch.equal(torch.as_tensor(error_unit(ranged, truth)), column_spread(ROWS, truth))
    assert score_examples(recon, truth, ranged, space=INPUT_SPACE)["exact"].tolist() == [1.0, 0.0, 1.0]


CENSUS = InputSpec(  # age, sex (one-hot), HIV status, income, a measured height
    modality=Modality.TABULAR,
    shape=(6,),
    num_classes=2,
    value_range=None,
    categories=((1, 2),),
    integer=(0, 3, 4),
    spread=(12.0, 0.5, 0.5, 0.2, 15_000.0, 10.0),
)


def test_counts_and_categories_must_be_equal_and_measures_lie_within_the_columns_spread() -> None:
    person = torch.tensor([[41.0, 1.0, 0.0, 1.0, 32156.0, 172.3]])
    other = torch.tensor([[44.0, 0.0, 1.0, 0.0, 32168.0, 172.3]])
    rule = exact_rule(CENSUS, person)
    assert rule.pairs(person, person).item()
    assert rule.values(other, person).tolist() == [[False, False, False, False, False, True]]
    noise = torch.tensor([[0.4, -0.4, 0.4, -0.4, 0.4, 0.009]])
    assert rule.pairs(
        person + noise, person
    ).item()  # all of it vanishes in rounding, or is below .001 of 10 cm
    for column, error in [(0, 1.0), (1, -0.6), (2, 0.6), (3, -1.0), (4, 1.0), (5, 0.011)]:
        off = person.clone()
        off[0, column] += error
        wrong = rule.values(off, person)[0].logical_not().nonzero().flatten().tolist()
        assert wrong == [column]
        assert score_examples(off, person, CENSUS, space=INPUT_SPACE)["exact"].item() == 0.0


@pytest.mark.parametrize("shape", [(3,), (40,), (2, 3, 3), (1000,)])
def test_every_pair_is_judged_as_if_it_were_alone(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(len(shape))
    truth = torch.rand(7, *shape, generator=generator)
    truth[3] = truth[5]  # a duplicate
    whole = torch.rand(shape, generator=generator) < 0.3
    truth = torch.where(whole, (9 * truth).round(), truth)
    near = truth + torch.where(whole, 0.45, 0.0009)
    last = truth.clone()
    last.view(7, -1)[:, -1] += 1.0  # alike but for one value
    candidates = torch.cat([near, last, torch.rand(4, *shape, generator=generator)])
    rule = ExactRule(unit=torch.ones(shape), whole=whole)
    single = [[rule.pairs(c[None], t[None]).item() for t in truth] for c in candidates]
    assert rule.every(candidates, truth).tolist() == single
    assert sum(map(sum, single)) == 9  # seven copies, and the duplicate twice more
    ids = torch.randint(0, 2, (6, *shape), generator=generator)
    expected = [[torch.equal(a, b) for b in ids] for a in ids]
    assert rule.every(ids, ids).tolist() == expected
    assert rule.every(candidates[:0], truth).shape == (0, 7)


def test_text_is_scored_on_ids_without_padding() -> None:
    truth, recon = torch.tensor([[1, 2, 0, 0], [2, 1, 1, 0]]), torch.tensor([[2, 1, 0, 0], [2, 1, 1, 0]])
    scores = score_examples(recon, truth, TEXTS, space=INPUT_SPACE)
    assert {name: score.tolist() for name, score in scores.items()} == {
        "token_accuracy": [0.0, 1.0],
        "rouge_1": [1.0, 1.0],
        "rouge_2": [0.0, 1.0],
        "rouge_l": [0.5, 1.0],
        "bag_of_words_recall": [1.0, 1.0],
        "exact": [0.0, 1.0],
    }
    assert torch.equal(scores["token_accuracy"], token_accuracy(recon, truth, padding_id=0))


def test_features_of_a_layer_are_judged_by_their_own_range() -> None:
    truth = torch.tensor([[0.0, 100.0], [50.0, 20.0]])
    recon = truth + torch.tensor([[0.05, 0.0], [0.2, 0.0]])
    scores = score_examples(recon, truth, TEXTS, space="encoder.0")
    assert list(scores) == ["relative_error", "cosine", "exact"]
    assert scores["exact"].tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("spec", "dtype"), [(PICTURES, torch.float32), (ROWS, torch.float32), (TEXTS, torch.int64)]
)
@pytest.mark.parametrize("space", [INPUT_SPACE, "layer"])
def test_no_pairs_give_empty_scores_of_the_same_names(
    spec: InputSpec, dtype: torch.dtype, space: str
) -> None:
    shape, dtype = (spec.shape, dtype) if space == INPUT_SPACE else ((5,), torch.float32)
    some = torch.ones(2, *shape, dtype=dtype)
    empty = score_examples(some[:0], some[:0], spec, space=space)
    full = score_examples(some, some, spec, space=space)
    assert list(empty) == list(full) and all(score.shape == (0,) for score in empty.values())
    assert all(score.shape == (2,) and torch.isfinite(score).all() for score in full.values())
    assert set(full) <= set(METRICS)
    assert all(
        METRICS[name].level == "example" and spec.modality in METRICS[name].modalities for name in full
    )


@pytest.mark.parametrize(
    ("recon", "truth", "spec", "reason"),
    [
        (torch.rand(1, 1, 9, 9), torch.rand(2, 1, 9, 9), PICTURES, "assign"),
        (torch.rand(1, 81), torch.rand(1, 81), PICTURES, "input spec says"),
        (torch.rand(1, 3) * torch.nan, torch.rand(1, 3), ROWS, "NaN"),
        (torch.rand(1, 4), torch.rand(1, 4), TEXTS, "integer token ids"),
        (torch.ones(1, 3, dtype=torch.int64), torch.ones(1, 3, dtype=torch.int64), ROWS, "floating-point"),
        (torch.rand(1, 4), torch.ones(1, 4, dtype=torch.int64), TEXTS, "convert one"),
    ],
)
def test_bad_pairs_are_refused_in_words(recon, truth, spec, reason) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(DataError, match=reason):
        score_examples(recon, truth, spec, space=INPUT_SPACE)


def test_the_catalogue_names_every_score_and_its_direction() -> None:
    assert all(name == metric.name and metric.description.endswith(".") for name, metric in METRICS.items())
    lower = {name for name, metric in METRICS.items() if not metric.higher_leaks}
    assert lower == {"mse", "lpips", "rmse", "relative_error"}
    batch = {name for name, metric in METRICS.items() if metric.level == "batch"}
    assert batch == {
        "extraction_precision_all",
        "extraction_precision_active",
        "extraction_recall",
        "active_neurons",
        "label_accuracy",
        "words_known",
    }
