"""Which photographs of an ImageNet-style folder to load: labels.csv says class, name and size of each."""

from __future__ import annotations

from pathlib import Path

from seepage.core.errors import DataError
from seepage.data.pictures import inside, spread
from seepage.data.tables import read_table

_SIDES = ("width", "height", "orig_width", "orig_height")


def select_photos(
    index: Path, *, size: int, limit: int | None
) -> tuple[list[Path], list[int], tuple[str, ...]]:
    """Files, labels and all class names. Columns: class_index, file; name and the sizes where known.

    A photograph counts as too small if any of its recorded sides, before or after an earlier
    re-encoding, is below `size`: enlarging it would make a picture with less detail than it claims.
    """
    header, rows = read_table(index)
    missing = [column for column in ("class_index", "file") if column not in header]
    if missing:
        raise DataError(f"labels.csv lacks the column {missing[0]}; it needs class_index and file.")
    records = [dict(zip(header, cells, strict=True)) for _, cells in rows]
    labels = [_whole(record, "class_index") for record in records]
    sides = [column for column in _SIDES if column in header]
    usable = [i for i, r in enumerate(records) if all(_whole(r, side) >= size for side in sides)]
    if not usable:
        raise DataError(f"no photograph in {index.parent.name} measures {size} pixels; give a smaller size.")
    keep = [usable[i] for i in spread(len(usable), limit)]
    names = dict(zip(labels, (record.get("name", "") for record in records), strict=True))
    class_names = tuple(names.get(i) or f"class {i}" for i in range(max(labels) + 1))
    return [inside(index.parent, records[i]["file"]) for i in keep], [labels[i] for i in keep], class_names


def _whole(record: dict[str, str], column: str) -> int:
    text = record[column]
    if not text.isascii() or not text.isdigit():
        raise DataError(f"labels.csv: {column} of {record['file']} is '{text}'; give a whole number.")
    return int(text)
