"""A table as a hospital exports it: identifiers, dates, missing values, and every fault named at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from seepage.core.errors import DataError, SpecError
from seepage.core.types import ColumnKind
from seepage.data import load_data
from seepage.data.dataset import Dataset

EXPORT = """Nr,Aufnahme,Ort,Alter,Größe,Schwere
P1,02.01.2024,München,50,1.70,leicht
P2,03.01.2024,Köln,,1.80,schwer
P3,,NA,70,NaN,leicht
P4,05.01.2024,Köln,61,1.60,
P5,06.01.2024,München,40,1.90,mäßig
"""


def read(folder: Path, text: str = EXPORT, **options: object) -> Dataset:
    path = folder / "patienten.csv"
    path.write_text(text, encoding="utf-8")
    return load_data(path, label="Schwere", **options)


def test_every_column_at_fault_is_named_at_once(tmp_path: Path) -> None:
    whole = EXPORT.replace("1.60,\n", "1.60,leicht\n")
    with pytest.raises(DataError) as error:
        read(tmp_path, whole)
    said = str(error.value).splitlines()
    assert said[0] == "patienten.csv has 4 columns that cannot be used:"
    assert [line.split("'")[1] for line in said[1:5]] == ["Nr", "Aufnahme", "Alter", "Größe"]
    assert "leave_out=['Nr']" in said[1] and all('missing = "fill"' in line for line in said[2:5])
    assert said[5].startswith('In an audit file: data = {name = "patienten.csv", leave_out')


def test_filled_by_the_lower_median_and_a_category_of_its_own(tmp_path: Path) -> None:
    data = read(tmp_path, leave_out=["Nr"], missing="fill")
    names, rows = data.spec.column_names, data.inputs.tolist()
    assert names == ("Aufnahme", "Ort=(missing)", "Ort=Köln", "Ort=München", "Alter", "Größe")
    # the row without a label is left out: none is made up, nor does it count for the medians
    assert [row[0] for row in rows] == [19724.0, 19725.0, 19725.0, 19728.0]
    assert [row[1] for row in rows] == [0.0, 0.0, 1.0, 0.0]
    assert [row[4] for row in rows] == [50.0, 50.0, 70.0, 40.0]
    assert [row[5] for row in rows] == pytest.approx([1.7, 1.8, 1.8, 1.9])
    assert data.spec.kinds[4] is ColumnKind.INTEGER  # a mean would have made it none
    assert data.spec.class_names == ("leicht", "mäßig", "schwer")


def test_rows_with_a_missing_value_are_dropped(tmp_path: Path) -> None:
    data = read(tmp_path, leave_out=["Nr", "Ort"], missing="drop")
    assert data.inputs[:, 0].tolist() == [19724.0, 19728.0]
    with pytest.raises(DataError, match="missing value in every row"):
        read(tmp_path, EXPORT.replace("1.70", "").replace("1.90", "NA"), leave_out=["Nr"], missing="drop")


def test_missing_values_in_a_column_that_is_left_out_cost_no_row(tmp_path: Path) -> None:
    text = EXPORT.replace("50", "").replace("40", "")
    kept = read(tmp_path, text.replace("1.60,\n", "1.60,leicht\n"), leave_out=["Nr", "Alter"], missing="drop")
    assert len(kept) == 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"leave_out": "Nr"}, r"give a list of column names, as \['Nr'\]"),
        ({"leave_out": ["Nummer"]}, "no feature column 'Nummer'"),
        ({"leave_out": ["Schwere"]}, "no feature column 'Schwere'"),
        ({"missing": "fil"}, "did you mean 'fill'"),
    ],
)
def test_a_slip_of_the_pen_is_named(tmp_path: Path, options: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        read(tmp_path, **options)


def test_a_slip_among_numbers_is_not_filled(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="line 2, column 'Alter': 'fünfzig' is not a finite number"):
        read(tmp_path, EXPORT.replace("50", "fünfzig"), leave_out=["Nr"], missing="fill")
