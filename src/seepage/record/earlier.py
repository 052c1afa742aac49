"""Folders of the formats before schema 3: what they are is said in one sentence, and --fresh removes them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from seepage.record.files import remove_run, remove_written


def earlier_format(folder: Path) -> str:
    """What the folder holds and what to do, where an earlier seepage wrote it; else nothing."""
    if _is_study(folder):
        what = "a study"
    elif _rows(folder):
        what = "the rows of a paper's table"
    else:
        return ""
    return (
        f"'{folder}' holds {what} in the format of an earlier seepage: run the same command again with "
        "--fresh or another --out, or read it with the version that wrote it."
    )


def remove_earlier(folder: Path) -> None:
    """Remove such a study or such rows, and nothing else."""
    for row in _rows(folder):
        remove_written(folder, re.escape(row.name))
    if not _is_study(folder):
        return
    points = folder / "points"
    for point in list(points.iterdir()) if points.is_dir() and not points.is_symlink() else ():
        if not point.is_symlink():
            remove_run(point)
    remove_written(points, "(?!)")  # no file: the folder itself, if it is empty now
    remove_written(folder / "training", r".+-seed-?\d+\.json")
    remove_written(folder, r"tradeoff\.(html|json)")


def _is_study(folder: Path) -> bool:
    header = folder / "tradeoff.json"
    return header.is_file() and b'"study_version"' in header.read_bytes()


def _rows(folder: Path) -> list[Path]:
    """Files with the values of one row each."""
    found = []
    for file in folder.glob("*.json") if folder.is_dir() else ():
        try:
            stored = json.loads(file.read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(stored, dict) and {"checksum", "key", "values"} <= set(stored):
            found.append(file)
    return found
