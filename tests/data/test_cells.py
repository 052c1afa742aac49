"""Numbers and days as people write them, and what can be read in two ways."""

from __future__ import annotations

from pathlib import Path

import pytest

from seepage.core.errors import DataError
from seepage.core.types import ColumnKind
from seepage.data import load_data
from seepage.data.cells import is_number, number, reader, whole


def written(folder: Path, cells: list[str], **options: object) -> list[float]:
    path = folder / "people.csv"
    lines = [f'"{cell}",{i},{i % 2}\n' for i, cell in enumerate(cells)]
    path.write_text("a,b,label\n" + "".join(lines))
    return [row[0] for row in load_data(path, **options).inputs.tolist()]  # type: ignore[arg-type]


def test_thousands_that_are_marked_off_are_numbers(tmp_path: Path) -> None:
    assert written(tmp_path, ["1,234", "-12,345.5", "999"]) == [1234.0, -12345.5, 999.0]
    assert written(tmp_path, ["1'234'567", "2 000"]) == [1234567.0, 2000.0]


def test_days_are_counted_from_1970(tmp_path: Path) -> None:
    assert written(tmp_path, ["1970-01-02", "2024-02-29", "1969-12-31"]) == [1.0, 19782.0, -1.0]
    assert written(tmp_path, ["02.01.1970", "29.2.2024"]) == [1.0, 19782.0]


def test_days_are_whole_numbers_to_the_audit(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text("born,label\n2024-02-29,0\n2024-03-01,1\n2024-03-02,0\n")
    assert load_data(path).spec.kinds == (ColumnKind.INTEGER,)


def test_columns_of_days_are_known_wherever_they_end_up(tmp_path: Path) -> None:
    """Behind the columns of a category; one that is named a category holds no days."""
    path = tmp_path / "people.csv"
    path.write_text(
        "town,born,seen,label\nUlm,2024-02-29,1.5.2024,0\nBonn,1970-01-02,2.5.2024,1\nUlm,1970-01-03,3.5.2024,1\n"
    )
    found = load_data(path)
    assert [found.spec.column_names[i] for i in found.days] == ["born", "seen"]
    assert load_data(path, categorical=["seen"]).days == (2,)
    assert load_data(path, last=2).days == (2, 3)


@pytest.mark.parametrize(
    ("cells", "sentence"),
    [
        (["1,5", "2,25", "3,5"], "decimal comma ('1,5'); write them with a point"),
        (["1", "2,25", "3"], "decimal comma ('2,25')"),
        (["1.234,5", "2,5"], "decimal comma"),
        (["29/02/2024", "01/03/2024"], "holds dates ('29/02/2024'); write them as 2024-12-31"),
        (["2024-02-29 10:00", "2024-02-29 11:00"], "holds dates"),
        (["2024-02-30", "2024-02-01"], "holds dates"),
        (["30.02.2024", "01.02.2024"], "holds dates"),
    ],
)
def test_what_can_be_read_in_two_ways_is_refused(tmp_path: Path, cells: list[str], sentence: str) -> None:
    with pytest.raises(DataError) as error:
        written(tmp_path, cells)
    assert sentence in str(error.value)


def test_dates_are_categories_where_the_user_says_so(tmp_path: Path) -> None:
    cells = ["29/02/2024", "01/03/2024", "29/02/2024"]
    assert written(tmp_path, cells, categorical=["a"]) == [0.0, 1.0, 0.0]


def test_a_class_with_its_thousands_marked_off(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text('a,label\n1,"1,000"\n2,"-1,000"\n')
    assert load_data(path).spec.class_names == ("-1000", "1000")


def test_long_numbers_with_marks_are_told_apart_or_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="differ beyond the digits"):
        written(tmp_path, ["16,777,216", "16,777,217"])


def test_one_cell() -> None:
    assert [is_number(cell) for cell in ("12,34", "1,2345", "1,234,56", "+1,234")] == [False] * 3 + [True]
    assert (number("1,234.5"), whole("1,234"), whole("1.5")) == (1234.5, 1234, None)
    assert reader(["red", ""]) is None
