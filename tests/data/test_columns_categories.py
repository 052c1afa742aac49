"""Categories of tables: read from a CSV file, or declared for columns that are one-hot already."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from seepage.core.errors import DataError, SpecError
from seepage.core.types import Grant, LocalTraining
from seepage.data import load_data, standardised
from seepage.protocol import THREATS, describe_knowledge, knowledge

ROWS = """age,colour,size,label
1,red,2,0
2,blue,1,1
4,red,1,1
3,green,2,0
"""


def table(tmp_path: Path, text: str = ROWS) -> Path:
    file = tmp_path / "table.csv"
    file.write_text(text)
    return file


def test_named_columns_become_one_hot_groups(tmp_path: Path) -> None:
    data = load_data(table(tmp_path), categorical=["colour", "size"])
    assert data.spec.column_names == ("age", "colour=blue", "colour=green", "colour=red", "size=1", "size=2")
    assert data.spec.categories == ((1, 2, 3), (4, 5))
    assert data.inputs.tolist() == [
        [1, 0, 0, 1, 0, 1],
        [2, 1, 0, 0, 1, 0],
        [4, 0, 0, 1, 1, 0],
        [3, 0, 1, 0, 0, 1],
    ]
    assert data.spec.shape == (6,) and data.labels.tolist() == [0, 1, 1, 0]


def test_numbers_are_standardised_and_one_hot_columns_stay_as_they_are(tmp_path: Path) -> None:
    data = load_data(table(tmp_path), categorical=["colour", "size"])
    fed = standardised(data, torch.arange(4)).batch(torch.arange(4)).inputs
    assert torch.equal(fed[:, 1:], data.inputs[:, 1:])
    torch.testing.assert_close(fed[:, 0].mean(), torch.tensor(0.0), atol=1e-6, rtol=0)


def test_a_column_of_words_is_a_category_without_being_named(tmp_path: Path) -> None:
    data = load_data(table(tmp_path))
    assert data.spec.column_names == ("age", "colour=blue", "colour=green", "colour=red", "size")
    assert data.spec.categories == ((1, 2, 3),)
    assert [str(kind) for kind in data.spec.kinds] == ["integer", *["categorical"] * 3, "integer"]


def test_a_word_among_numbers_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"column 'colour': 'red' is not a finite number; .* categorical="):
        load_data(table(tmp_path, ROWS.replace("blue", "7")))


def test_words_that_are_all_different_name_rows_not_categories(tmp_path: Path) -> None:
    names = ROWS.replace("3,green", "3,pink").replace("4,red", "4,white")
    with pytest.raises(DataError, match="'colour' holds a different text in each of 4 rows"):
        load_data(table(tmp_path, names))
    assert len(load_data(table(tmp_path, names), categorical=["colour"]).spec.categories[0]) == 4


@pytest.mark.parametrize(
    ("categorical", "text", "message"),
    [
        (["color"], ROWS, "no feature column 'color'"),
        (["label"], ROWS, "no feature column 'label'"),
        ("colour", ROWS, "give a list of column names"),
        (["a"], "a,label\nx,0\nx,1\n", "same category everywhere"),
        (["a"], "a,label\nx,0\n,1\n", "empty cells"),
        (["a"], "a,label\n" + "".join(f"{i},0\n" for i in range(1001)), "1001 categories"),
    ],
)
def test_bad_categorical_columns_get_one_sentence(
    tmp_path: Path, categorical: list[str], text: str, message: str
) -> None:
    with pytest.raises((DataError, SpecError), match=message):
        load_data(table(tmp_path, text), categorical=categorical)


def one_hot_rows() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([[0.5, 1, 0], [0.1, 0, 1]]), torch.tensor([0, 1])


def test_columns_that_are_one_hot_already_are_declared() -> None:
    assert load_data(one_hot_rows(), categories=[[1, 2]]).spec.categories == ((1, 2),)


@pytest.mark.parametrize(
    ("categories", "message"),
    [
        ([[0, 1]], "row 0 does not hold zeros and a single 1"),
        ([[1, 2], [2, 1]], "no column twice"),
        ([[1]], "at least two columns"),
        ([[1, 3]], "outside of 0..2"),
        ([[-1, 1]], "outside of 0..2"),
        ([["a", "b"]], "groups of column numbers"),
        (5, "groups of column numbers"),
    ],
)
def test_wrong_groups_get_one_sentence(categories: object, message: str) -> None:
    with pytest.raises((DataError, SpecError), match=message):
        load_data(one_hot_rows(), categories=categories)  # type: ignore[arg-type]


def test_pictures_have_no_categories() -> None:
    with pytest.raises(DataError, match="only columns of a table"):
        load_data("digits", categories=[[0, 1]])


def test_the_schema_is_known_only_where_value_ranges_are() -> None:
    rows, labels = one_hot_rows()
    spec = load_data((torch.cat([rows, rows[:, 1:]], dim=1), labels), categories=[[1, 2]]).spec
    assert spec.integer == (3, 4) and spec.spread is not None
    for name in ("honest_but_curious", "outsider"):
        threat = THREATS[name]
        known = knowledge(
            threat,
            "per_client",
            spec=spec,
            loss="cross_entropy",
            local=LocalTraining(),
            auxiliary=None,
            seed=0,
        )
        granted = Grant.VALUE_RANGE in threat.grants
        assert known.input.categories == (((1, 2),) if granted else ())
        told = describe_knowledge(threat, "per_client", known)
        assert any("categories" in sentence for sentence in told) == granted
        assert known.input.integer == ((3, 4) if granted else ())
        assert any("whole numbers" in sentence for sentence in told) == granted
        assert known.input.spread is None  # measured on the clients' rows as well
