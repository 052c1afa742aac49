"""What a cell of a table says: a number, a number with its thousands marked off, a day; else a text."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Iterable, Sequence

from seepage.core.errors import DataError

_THOUSANDS = re.compile(r"[+-]?\d{1,3}([,' \u00a0\u202f]\d{3})+(\.\d+)?")
"""1,234,567.89, with commas, apostrophes or narrow spaces: groups of three, so that 1,5 is none."""
_DECIMAL_COMMA = re.compile(r"[+-]?(\d{1,3}(\.\d{3})+|\d+),\d+")
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_GERMAN_DAY = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})")
"""With points the day comes first everywhere; with slashes that depends on the country."""
_OTHER_DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([T ].*)?|\d{4}-\d{2}-\d{2}[T ].*")
MISSING = frozenset({"", "na", "n/a", "nan", "null"})
"""Cells without a value, in small letters: what pandas writes or reads as missing."""
REMEDY = 'missing = "fill" or missing = "drop"'
Row = tuple[int, list[str]]
"""Line number in the file, cells."""
_FIRST_DAY = datetime.date(1970, 1, 1).toordinal()


def is_number(cell: str) -> bool:
    """
    >>> [is_number(cell) for cell in ("1.5", "1,234", "-12,345.6", "1,5", "1,23", "red", "")]
    [True, True, True, False, False, False, False]
    """
    try:
        number(cell)
    except ValueError:
        return False
    return True


def number(cell: str) -> float:
    """
    >>> number("-12,345.5")
    -12345.5
    """
    if "_" in cell:  # Python's own mark, in nobody's data: 12_345 is a name
        raise ValueError(f"'{cell}' is no number")
    return float(_without_marks(cell))


def is_day(cell: str) -> bool:
    """
    >>> is_day("2024-02-29"), is_day("2023-02-29"), is_day("29.2.2024"), is_day("29/02/2024")
    (True, False, True, False)
    """
    return _day(cell) is not None


def holds_days(cells: Iterable[str]) -> bool:
    """Whether the cells of a column are all days."""
    return all(is_day(cell) for cell in cells)


def reader(cells: Sequence[str]) -> Callable[[str, str, int, str], float] | None:
    """How the cells of a column become numbers; None where they hold categories.

    Days (2024-02-29) are counted from 1970-01-01.
    """
    if cells and holds_days(cells):
        return day_number
    return finite_number if any(is_number(cell) for cell in cells) else None


def check_written(cells: Sequence[str], column: str, name: str) -> None:
    """Refuse numbers and dates in a writing that can be read in two ways: as categories they are nonsense."""
    marked = [cell for cell in cells if cell]
    if marked and all(_DECIMAL_COMMA.fullmatch(cell) or is_number(cell) for cell in marked):
        commas = next((cell for cell in marked if not is_number(cell)), None)
        if commas is not None:
            raise DataError(
                f"{name}, column '{column}' holds numbers with a decimal comma ('{commas}'); write them with "
                "a point."
            )
    if marked and all(_OTHER_DATE.fullmatch(cell) for cell in marked) and not all(map(is_day, marked)):
        raise DataError(
            f"{name}, column '{column}' holds dates ('{marked[0]}'); write them as 2024-12-31 or 31.12.2024, "
            "without a time, or name the column in leave_out."
        )


def finite_number(cell: str, column: str, line: int, name: str) -> float:
    """The number in a cell; an error names its place."""
    value = number(cell) if is_number(cell) else math.nan
    if not math.isfinite(value):
        where = f"{name}, line {line}, column '{column}'"
        if cell.lower() in MISSING:
            raise DataError(f"{where}: {_lacking(cell)}")
        raise DataError(
            f"{where}: '{cell}' is not a finite number; for categories give categorical=['{column}']."
        )
    return value


def day_number(cell: str, column: str, line: int, name: str) -> float:
    """Days since 1970-01-01.

    >>> day_number("1970-02-01", "born", 2, "people.csv")
    31.0
    """
    day = _day(cell)
    if day is None:
        said = f"'{cell}' is no day; write it as 2024-12-31."
        if cell.lower() in MISSING:
            said = _lacking(cell)
        raise DataError(f"{name}, line {line}, column '{column}': {said}")
    return float(day.toordinal() - _FIRST_DAY)


def whole(cell: str) -> int | None:
    """The whole number in a cell, to all its digits; None for anything else."""
    digits = _without_marks(cell)
    return int(digits) if digits.removeprefix("-").isdecimal() else None


def _without_marks(cell: str) -> str:
    return re.sub(r"[,' \u00a0\u202f]", "", cell) if _THOUSANDS.fullmatch(cell) else cell


def _day(cell: str) -> datetime.date | None:
    german = _GERMAN_DAY.fullmatch(cell)
    if not german and not _DAY.fullmatch(cell):
        return None
    try:
        if german:
            day, month, year = map(int, german.groups())
            return datetime.date(year, month, day)
        return datetime.date.fromisoformat(cell)
    except ValueError:
        return None


def _lacking(cell: str) -> str:
    shown = f"'{cell}'" if cell else "an empty cell"
    return f"{shown} is a missing value; say what becomes of such rows: {REMEDY}."
