"""Files that appear whole or not at all and that only their owner reads: they hold private originals."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from seepage.core.errors import LogError


def write_atomically(path: Path, content: bytes | Callable[[str], None]) -> None:
    """Write to a temporary file beside `path`, flush it to disk, then rename: readers never see a part.

    The file gets mode 0600, and folders that are not there yet get 0700.
    content: or what writes it to the file of a given name, so that it is never in memory as a whole.
    """
    _make_folder(path.parent)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # 0600
    try:
        with os.fdopen(handle, "wb") as file:
            if isinstance(content, bytes):
                file.write(content)
                file.flush()
            else:
                content(temporary)
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)  # gone already, unless something failed


def _make_folder(path: Path) -> None:
    """Every folder on the way: Path.mkdir gives its mode to the last one only."""
    if not path.exists():
        _make_folder(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


def printable(text: str) -> str:
    """A text of somebody else's file on one short line of a sentence."""
    return "".join(c if c.isprintable() else " " for c in text)[:120]


def refuse_foreign(folder: Path) -> None:
    """Nothing is written among files that are not a run's."""
    if folder.is_dir() and any(not entry.name.startswith(".") for entry in folder.iterdir()):
        raise LogError(
            f"'{folder}' holds files that are no run of seepage's: choose a new or empty folder with --out."
        )


def remove_written(folder: Path, names: str) -> None:
    """Remove the files that seepage writes here, its unfinished ones too, and the folder if nothing is left.

    names: a regular expression. Files by other names stay, and so does whatever a link leads to.
    """
    if folder.is_symlink() or not folder.is_dir():
        return
    written = re.compile(rf"({names})|\.({names})\.\w{{8}}")  # the second: what mkstemp makes of it
    for file in list(folder.iterdir()):
        if written.fullmatch(file.name) and (file.is_symlink() or file.is_file()):
            file.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()


_CELL = r".+-seed-?\d+"
"""What `cell_id` gives."""


def remove_run(folder: Path) -> None:
    """Remove the cells, pictures and report of a run; its header last, so that it can be done again."""
    if (folder / "advice" / "log.json").is_file():
        remove_run(folder / "advice")  # what was measured about changes of an audited deployment
    for inside, names in (
        (folder / "cells", rf"{_CELL}(\.partial\d*|\.traceback)?\.(json|safetensors|txt)"),
        (folder / "pictures", rf"{_CELL}(\.live)?\.png"),
    ):
        points = list(inside.iterdir()) if inside.is_dir() and not inside.is_symlink() else []
        for each in (*points, inside):
            remove_written(each, names)
    remove_written(folder, r"report\.html")
    remove_written(folder, r"log\.json")
