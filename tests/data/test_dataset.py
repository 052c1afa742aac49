"""`validate` names the first fault; `batch` gives model units."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from seepage.core.errors import DataError
from seepage.core.types import InputSpec, Modality
from seepage.data import DATASETS, Dataset, validate

ROWS = Dataset(
    "rows",
    torch.tensor([[0.0, 1.0], [0.5, 0.25]]),
    torch.tensor([0, 1]),
    InputSpec(modality=Modality.TABULAR, shape=(2,), num_classes=2),
    "by hand",
)
TEXT = Dataset(
    "text",
    torch.tensor([[0, 3], [2, 1]]),
    torch.tensor([0, 1]),
    InputSpec(modality=Modality.TEXT, shape=(2,), num_classes=2, value_range=None, vocabulary=4),
    "by hand",
)


def test_good_datasets_pass_unchanged() -> None:
    assert validate(ROWS) is ROWS
    assert validate(TEXT) is TEXT


def test_batch_is_in_model_units_and_in_the_order_asked_for() -> None:
    spec = replace(ROWS.spec, mean=(1.0, 2.0), std=(2.0, 4.0))
    batch = replace(ROWS, spec=spec).batch(torch.tensor([1, 0, 1]))
    assert batch.labels.tolist() == [1, 0, 1]
    assert batch.inputs.tolist() == [[-0.25, -0.4375], [-0.5, -0.25], [-0.25, -0.4375]]


def spec(**changes: object) -> dict[str, object]:
    return {"spec": replace(ROWS.spec, **changes)}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"inputs": torch.zeros(0, 2), "labels": torch.zeros(0, dtype=torch.int64)}, "no values"),
        ({"inputs": torch.zeros(2, 0), **spec(shape=(0,))}, "no values"),
        ({"inputs": torch.zeros(2, 1, 2)}, "must be (N, D)"),
        ({"inputs": torch.zeros(3, 2)}, "3 inputs but 2 labels"),
        ({"inputs": torch.zeros(2, 3)}, "per example but the spec says"),
        ({"inputs": torch.zeros(2, 2, dtype=torch.float64)}, "must be float32"),
        ({"inputs": torch.tensor([[0.0, 0.0], [0.0, math.nan]])}, "example 1 holds NaN"),
        ({"inputs": torch.tensor([[math.inf, 0.0], [0.0, 0.0]])}, "example 0 holds NaN or infinite"),
        ({"inputs": torch.tensor([[-0.5, 0.0], [0.0, 0.0]])}, "outside the value range"),
        ({"inputs": torch.tensor([[1.5, 0.0], [0.0, 0.0]])}, "value_range=(0, 1.5)"),
        ({"labels": torch.tensor([0.0, 1.0])}, "must be int64"),
        ({"labels": torch.tensor([0, 2])}, "must lie in 0..1"),
        ({"labels": torch.tensor([-1, 1])}, "must lie in 0..1"),
        ({"labels": torch.eye(2, dtype=torch.int64)}, "argmax"),
        (spec(num_classes=1), "needs two classes"),
        (spec(num_classes=10**9), "identifiers"),
        (spec(class_names=("a",)), "1 class names for 2"),
        (spec(column_names=("a", "b", "c")), "3 column names for 2"),
        (spec(mean=(0.0, 0.0)), "only one of mean and std"),
        (spec(mean=(0.0,), std=(1.0,)), "one number per column"),
        (spec(mean=(0.0, 0.0), std=(1.0, 0.0)), "above zero"),
        (spec(mean=(0.0, math.nan), std=(1.0, 1.0)), "finite"),
        (spec(value_range=(1.0, 1.0)), "empty or infinite"),
        (spec(value_range=(-math.inf, 1.0)), "empty or infinite"),
    ],
)
def test_faults_of_rows(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(DataError) as error:
        validate(replace(ROWS, **changes))  # type: ignore[arg-type]
    assert reason in str(error.value)
    assert str(error.value).startswith("rows: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"inputs": torch.tensor([[0, 4], [0, 0]])}, "must lie in 0..3"),
        ({"inputs": torch.tensor([[0, -1], [0, 0]])}, "must lie in 0..3"),
        ({"inputs": torch.zeros(2, 2)}, "must be int64"),
        ({"spec": replace(TEXT.spec, vocabulary=None)}, "give vocabulary"),
        ({"spec": replace(TEXT.spec, tokens=("a",))}, "1 words for a vocabulary of 4"),
        ({"spec": replace(TEXT.spec, value_range=(0.0, 1.0))}, "no value range"),
        ({"spec": replace(TEXT.spec, mean=(0.0, 0.0), std=(1.0, 1.0))}, "cannot be normalised"),
    ],
)
def test_faults_of_text(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(DataError) as error:
        validate(replace(TEXT, **changes))  # type: ignore[arg-type]
    assert reason in str(error.value)


def test_every_entry_of_the_catalogue_says_what_it_is_and_needs() -> None:
    for name in DATASETS:
        entry = DATASETS.entry(name)
        assert entry.description
        assert entry.facts["needs"]
        assert entry.facts["modality"] in set(Modality)


def test_pictures_that_were_turned_from_hwc_are_fed_as_a_loader_would_stack_them() -> None:
    """A convolution keeps the order in memory, and `x.view(len(x), -1)` behind it then fails."""
    turned = torch.rand(3, 8, 8, 3).permute(0, 3, 1, 2)
    spec = InputSpec(modality=Modality.IMAGE, shape=(3, 8, 8), num_classes=2)
    batch = Dataset("turned", turned, torch.tensor([0, 1, 0]), spec, "by hand").batch(torch.arange(3))
    features = torch.nn.Conv2d(3, 4, 3)(batch.inputs)
    assert features.view(3, -1).shape == (3, 144)
    assert torch.equal(batch.inputs, turned)
