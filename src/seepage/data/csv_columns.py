"""Columns of a CSV file: which are left out, what becomes of empty cells, and one-hot code of categories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from seepage.core.errors import DataError, SpecError
from seepage.core.registry import unknown
from seepage.data.cells import MISSING, REMEDY, Row, check_written, is_day, is_number, reader, whole

Missing = Literal["refuse", "fill", "drop"]
FILLED = "(missing)"
"""The category of a cell without one."""
MOST_CATEGORIES = 1000
"""More would be as many columns of the table."""
_WRITTEN = 'data = {name = "%s", leave_out = ["..."], categorical = ["..."], missing = "fill"}'
_MOST_TOLD = 6
"""Columns that one error is about."""


def check_columns(option: str, given: Sequence[str], valid: Sequence[str], name: str) -> None:
    """Every column that an option names is a feature of the file."""
    if isinstance(given, str):
        raise SpecError(f"{option} is {given!r}; give a list of column names, as [{given!r}].")
    for column in given:
        if column not in valid:
            raise SpecError(
                f"{name} has no feature column '{column}'; give {option}= some of {', '.join(valid)}."
            )


def without_gaps(
    rows: list[Row], features: Sequence[int], label: int, *, missing: Missing, name: str
) -> list[Row]:
    """The rows after empty cells (also NA, NaN, null) were seen to.

    missing: "drop" leaves such rows out. "fill" puts the column's lower median there, or a category of its
    own; a row without a label is left out, for none is made up. "refuse" leaves them for an error to name.

    >>> rows = [(2, ["1", "red", "a"]), (3, ["", "NA", "b"]), (4, ["4", "red", "a"])]
    >>> without_gaps(rows, [0, 1], 2, missing="fill", name="t.csv")[1]
    (3, ['1', '(missing)', 'b'])
    >>> len(without_gaps(rows, [0, 1], 2, missing="drop", name="t.csv"))
    2
    """
    if missing not in get_args(Missing):
        raise SpecError(unknown("way with missing values", str(missing), get_args(Missing)))
    if missing == "refuse":
        return rows
    needed = [label, *features] if missing == "drop" else [label]
    kept = [(line, list(cells)) for line, cells in rows if not any(_empty(cells[i]) for i in needed)]
    if not kept:
        raise DataError(f"{name} has a missing value in every row; name the emptiest columns in leave_out.")
    for i in features if missing == "fill" else ():
        there = [cells[i] for _, cells in kept if not _empty(cells[i])]
        filled = _typical(there)
        for _, cells in kept:
            cells[i] = filled if _empty(cells[i]) else cells[i]
    return kept


def _empty(cell: str) -> bool:
    return cell.lower() in MISSING


def _typical(cells: Sequence[str]) -> str:
    """The lower median of numbers or days, which is one of them; of texts the category of its own."""
    read = reader(cells)
    if read is None:
        return FILLED
    if not all(is_number(cell) or is_day(cell) for cell in cells):
        return ""  # a column with a slip of the pen, which is named with its line
    return sorted(cells, key=lambda cell: read(cell, "", 0, ""))[(len(cells) - 1) // 2]


def encoded(
    header: Sequence[str], rows: Sequence[Row], features: Sequence[int], categorical: Sequence[str], name: str
) -> tuple[list[tuple[str, list[float]]], tuple[tuple[int, ...], ...]]:
    """Named columns of numbers, and which of them are one category. One error names every column at fault."""
    columns: list[tuple[str, list[float]]] = []
    groups: list[tuple[int, ...]] = []
    faults: list[str] = []
    for i in features:
        lines = [(line, cells[i]) for line, cells in rows]
        try:
            found = _column(header[i], lines, name, categorical=header[i] in categorical)
        except DataError as fault:
            faults.append(str(fault))
            continue
        if found[0][0] != header[i]:
            groups.append(tuple(range(len(columns), len(columns) + len(found))))
        columns += found
    if len(faults) > 1:
        told = [f"- {fault.removeprefix(f'{name}, ')}" for fault in faults[:_MOST_TOLD]]
        more = len(faults) - _MOST_TOLD
        rest = [f"- and {more} more"] if more > 0 else []
        first, last = (
            f"{name} has {len(faults)} columns that cannot be used:",
            f"In an audit file: {_WRITTEN}",
        )
        raise DataError("\n".join([first, *told, *rest, last % name]))
    if faults:
        raise DataError(faults[0])
    return columns, tuple(groups)


def _column(
    column: str, lines: Sequence[tuple[int, str]], name: str, *, categorical: bool
) -> list[tuple[str, list[float]]]:
    """One column of numbers by its name, or one for each category."""
    cells = [cell for _, cell in lines]
    if not categorical:
        check_written(cells, column, name)
        read = reader(cells)
        if read is not None:
            values = [read(cell, column, line, name) for line, cell in lines]
            _check_digits(cells, column, name)
            return [(column, values)]
        _check_names(cells, column, name)
    distinct = sorted(set(cells))
    _check_category(distinct, column, len(cells), name)
    return [(f"{column}={v}", [float(cell == v) for cell in cells]) for v in distinct]


def _check_names(cells: Sequence[str], column: str, name: str) -> None:
    """A column of texts that are all different names its rows; it is no category unless the user says so."""
    if "" not in cells and len(set(cells)) == len(cells) > 1:
        raise DataError(
            f"{name}, column '{column}' holds a different text in each of {len(cells)} rows, more likely "
            f"identifiers than categories; give leave_out=['{column}'], or name it in categorical."
        )


def _check_digits(cells: Sequence[str], column: str, name: str) -> None:
    """Refuse whole numbers that are different in the file and the same in the 32 bits of a model's input.

    An example would be called exact with another one's number.
    """
    different = {found for cell in cells if (found := whole(cell)) is not None}
    if len({float(np.float32(found)) for found in different}) < len(different):
        raise DataError(
            f"{name}, column '{column}' holds whole numbers that differ beyond the digits of a model's input "
            f"(32 bits, 7 digits); give leave_out=['{column}'] if they are identifiers, or divide the column."
        )


def _check_category(values: Sequence[str], column: str, rows: int, name: str) -> None:
    if "" in values:
        raise DataError(f"{name}, column '{column}' has empty cells; say what becomes of them: {REMEDY}.")
    if len(values) < 2:
        raise DataError(f"{name}, column '{column}' holds the same category everywhere; leave it out.")
    if len(values) > MOST_CATEGORIES:
        raise DataError(
            f"{name}, column '{column}' holds {len(values)} categories in {rows} rows, which are more likely "
            "identifiers or numbers; leave it out of categorical, or bin its values."
        )
