"""CSV files: a header, one row per example, numbers everywhere but in the label and categorical columns."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from seepage.core.errors import DataError, SpecError
from seepage.core.types import Modality
from seepage.core.user_code import reason
from seepage.data.arrays import from_arrays
from seepage.data.cells import Row, holds_days, is_number, number
from seepage.data.csv_columns import Missing, check_columns, encoded, without_gaps
from seepage.data.dataset import Dataset
from seepage.data.dict_columns import TEXTS, WORDS, columns_of, from_columns
from seepage.data.tokenised import from_texts

LABEL_COLUMNS = ("label", "target", "class", "y")


def csv_file(
    path: Path,
    /,
    *,
    modality: Modality | None = None,
    label: str | None = None,
    delimiter: str = ",",
    categorical: Sequence[str] = (),
    leave_out: Sequence[str] = (),
    missing: Missing = "refuse",
    text: str | None = None,
    tokenizer: Any = None,
    length: int = 64,
) -> Dataset:
    """Rows of numbers with a header. Label: the column named, else label/target/class/y, else the last.

    With `text` or modality "text" it is a list of texts, in that column; the label may then be missing, and
    other columns are left out. tokenizer, length: see `tokenised.from_texts`.

    Numbers may have their thousands marked off (1,234), days are written 2024-12-31 or 31.12.2024. A column
    without any number holds categories, and so do those that `categorical` names: each becomes one column for
    every category, in one-hot code. Columns are raw, so a model is fed them standardised.

    leave_out: columns that the model does not see, such as identifiers. missing: of `without_gaps`.
    """
    if modality is Modality.IMAGE:
        raise SpecError(f"{path.name} is a table; leave out modality='{modality}', or give pictures as .npz.")
    header, rows = read_table(path, delimiter=delimiter)
    if text is not None or modality is Modality.TEXT:
        listed = [dict(zip(header, cells, strict=True)) for _, cells in rows]
        return text_rows(listed, path, text=text, label=label, tokenizer=tokenizer, length=length)
    column = _label_column(header, label, path.name)
    features = [i for i in range(len(header)) if i != column]
    named = [header[i] for i in features]
    for option, given in (("categorical", categorical), ("leave_out", leave_out)):
        check_columns(option, given, named, path.name)
    features = [i for i in features if header[i] not in leave_out]
    if not features:
        raise DataError(f"{path.name} has no column besides the label; add at least one feature column.")
    rows = without_gaps(rows, features, column, missing=missing, name=path.name)
    told = label is not None or header[column].lower() in LABEL_COLUMNS  # else the last one was taken for it
    read = _targets if told else class_indices
    labels, names = read([cells[column] for _, cells in rows], column=header[column])
    columns, groups = encoded(header, rows, features, categorical, path.name)
    dates = {
        header[i] for i in features if header[i] not in categorical and holds_days(c[i] for _, c in rows)
    }
    dataset = from_arrays(
        np.asarray([column for _, column in columns], dtype=np.float64).T,
        labels,
        name=path.stem,
        source=path.name
        if label
        else f"{path.name}, whose column '{header[column]}' was taken for the label",
        modality=Modality.TABULAR,
        class_names=names,
        column_names=[name for name, _ in columns],
    )
    return replace(
        dataset,
        spec=replace(dataset.spec, categories=groups),
        standardise=True,
        days=tuple(number for number, (name, _) in enumerate(columns) if name in dates),
    )


def json_lines(
    path: Path,
    /,
    *,
    modality: Modality | None = None,
    text: str | None = None,
    label: str | None = None,
    tokenizer: Any = None,
    length: int = 64,
) -> Dataset:
    """Texts, one JSON object a line, with fields for the text and, where there are classes, the label."""
    if modality not in (None, Modality.TEXT):
        raise SpecError(f"{path.name} holds texts; leave out modality='{modality}'.")
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
        rows = [json.loads(line) for line in lines if line.strip()]
    except (UnicodeDecodeError, ValueError) as error:
        raise DataError(
            f"{path.name} cannot be read ({reason(error)}); give one JSON object a line, in UTF-8."
        ) from None
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path.name} must hold one JSON object a line, at least one.")
    return text_rows(rows, path, text=text, label=label, tokenizer=tokenizer, length=length)


def text_rows(
    rows: Sequence[Mapping[str, Any]],
    path: Path,
    *,
    text: str | None,
    label: str | None,
    tokenizer: Any,
    length: int,
) -> Dataset:
    """A dataset from rows with a field for the text: the one named, else text, sentence or review.

    Rows with a list of words and one of classes are texts whose words have classes.
    """
    fields = list(rows[0])
    split = columns_of(rows) if text is None and label is None and set(WORDS) & set(fields) else None
    if split is not None:
        tagged = from_columns(*split, name=path.stem, source=path.name, tokenizer=tokenizer, length=length)
        if tagged is not None:
            return tagged
    for wanted in (text, label):
        if wanted is not None and any(wanted not in row for row in rows):
            raise SpecError(f"{path.name} has rows without '{wanted}'; name one of {', '.join(fields)}.")
    column = text or next((name for name in TEXTS if all(name in row for row in rows)), None)
    if column is None:
        raise SpecError(f"{path.name}: which column is the text? Give text= one of {', '.join(fields)}.")
    classes = label or next((name for name in LABEL_COLUMNS if all(name in row for row in rows)), None)
    labels, names = (
        (None, ()) if classes is None else class_indices([str(row[classes]) for row in rows], column=classes)
    )
    return from_texts(
        [row[column] for row in rows],
        labels,
        name=path.stem,
        source=path.name,
        tokenizer=tokenizer,
        length=length,
        class_names=names,
    )


def read_table(path: Path, *, delimiter: str = ",") -> tuple[list[str], list[Row]]:
    """Header and rows of a CSV file, every row as long as the header, blank lines left out."""
    if not isinstance(delimiter, str) or len(delimiter) != 1:
        raise SpecError(f"delimiter is {delimiter!r}; give one character, such as ',' or ';'.")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            lines = [(reader.line_num, [c.strip() for c in cells]) for cells in reader if cells]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{path.name} cannot be read as CSV ({reason(error)}); save it as UTF-8 comma-separated text."
        ) from None
    if not lines:
        raise DataError(f"{path.name} is empty; give a header line and at least one row.")
    header, rows = lines[0][1], lines[1:]
    # Columns may be called 2019 or 0, 1, 2; a broken or negative number is a value.
    if all(is_number(cell) for cell in header) or any(is_number(c) and not c.isdecimal() for c in header):
        raise DataError(f"{path.name} begins with numbers; put the column names on its first line.")
    other = next((mark for mark in ";\t|" if mark in header[0] and delimiter not in header[0]), None)
    if len(header) == 1 and other is not None:
        raise DataError(f"{path.name} seems to be divided by {other!r}; give delimiter={other!r}.")
    if "" in header or len(set(header)) != len(header):
        raise DataError(
            f"{path.name} has empty or repeated column names; give every column a name of its own."
        )
    if not rows:
        raise DataError(f"{path.name} has a header but no rows; give at least one row.")
    for line, cells in rows:
        if len(cells) != len(header):
            raise DataError(
                f"{path.name}, line {line}: {len(cells)} cells under {len(header)} column names; "
                "quote cells that contain the delimiter."
            )
    return header, rows


def _targets(cells: Sequence[str], *, column: str) -> tuple[list[int] | list[float], tuple[str, ...]]:
    """Class indices and names; numbers for a regression, where one of them is broken."""
    numbers = [number(cell) for cell in cells if is_number(cell)]
    whole_ones = all(n.is_integer() for n in numbers if math.isfinite(n))
    if len(numbers) < len(cells) or whole_ones or not all(map(math.isfinite, numbers)):
        return class_indices(cells, column=column)
    return numbers, ()


def class_indices(cells: Sequence[str], *, column: str) -> tuple[list[int], tuple[str, ...]]:
    """Class indices and names. Whole numbers from 0 up are indices already and get no names.

    >>> class_indices(["dog", "cat", "dog"], column="animal")
    ([1, 0, 1], ('cat', 'dog'))
    >>> class_indices(["2", "0"], column="label")
    ([2, 0], ())
    """
    if any(cell == "" for cell in cells):
        raise DataError(f"the label column '{column}' has empty cells; fill them in or leave those rows out.")
    if not all(is_number(cell) for cell in cells):
        names = tuple(sorted(set(cells)))
        index = {name: i for i, name in enumerate(names)}
        return [index[cell] for cell in cells], names
    numbers = [number(cell) for cell in cells]
    broken = next((n for n in numbers if not n.is_integer()), None)
    if broken is not None:
        raise DataError(
            f"the label column '{column}' holds {broken:g}, which is not a class; name another column with "
            "label=, or this one, if it holds what a regression is to say."
        )
    if min(numbers) >= 0:
        return [int(n) for n in numbers], ()
    distinct = sorted(set(numbers))  # such as -1 and 1
    return [distinct.index(n) for n in numbers], tuple(f"{n:g}" for n in distinct)


def _label_column(header: Sequence[str], label: str | None, name: str) -> int:
    if label is not None:
        if label not in header:
            raise SpecError(f"{name} has no column '{label}'; give label= one of {', '.join(header)}.")
        return header.index(label)
    lower = [column.lower() for column in header]
    return next((lower.index(n) for n in LABEL_COLUMNS if n in lower), len(header) - 1)
