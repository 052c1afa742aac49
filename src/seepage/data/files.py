"""The user's own files: .npz, .csv, .jsonl, or a folder of pictures."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from seepage.core.errors import DataError
from seepage.core.types import Modality
from seepage.core.user_code import UNREADABLE, reason
from seepage.data.arrays import INPUT_KEYS, LABEL_KEYS, Layout, from_mapping, pick_key
from seepage.data.dataset import Dataset
from seepage.data.pictures import picture_folder
from seepage.data.tables import csv_file, json_lines

MOST_BYTES = 8 * 2**30
"""An archive may unpack to this much: stops one of a few kilobytes that would fill the memory."""


def npz_file(
    path: Path, /, *, modality: Modality | None = None, layout: Layout = "auto", vocabulary: int | None = None
) -> Dataset:
    """Arrays inputs/x/images/data and labels/y/targets, with class_names if it has them."""
    return from_mapping(
        read_npz(path, (INPUT_KEYS, LABEL_KEYS), optional=("class_names",)),
        name=path.stem,
        source=path.name,
        modality=modality,
        layout=layout,
        vocabulary=vocabulary,
    )


def read_npz(
    path: Path, wanted: Sequence[Sequence[str]], *, optional: Sequence[str] = ()
) -> dict[str, np.ndarray[Any, Any]]:
    """From each group of `wanted` names the first one the archive has, and the `optional` ones it has.

    Pickled objects are refused, so that a file cannot run code.
    """
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise DataError(
                f"{path.name} is a single array; save inputs and labels together with numpy.savez."
            )
        with archive:
            _check_unpacked_size(path)
            members = dict.fromkeys(archive.files)
            keys = [pick_key(members, group, path.name) for group in wanted]
            keys += [name for name in optional if name in members]
            return {key: archive[key] for key in keys}
    except UNREADABLE as error:
        raise DataError(
            f"{path.name} cannot be read as .npz ({reason(error)}); "
            "save it again with numpy.savez and plain numeric arrays."
        ) from None


def _check_unpacked_size(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        total = sum(member.file_size for member in archive.infolist())
    if total > MOST_BYTES:
        raise DataError(
            f"{path.name} unpacks to {total / 2**30:.1f} GiB, more than {MOST_BYTES / 2**30:.0f}; "
            "save only the examples that are to be audited."
        )


def file_loader(path: Path) -> Callable[..., Dataset]:
    """The loader for what lies at `path`."""
    if path.is_dir():
        return picture_folder
    if not path.exists():
        raise DataError(f"{path.name} does not exist; check the path.")
    loaders: dict[str, Callable[..., Dataset]] = {
        ".npz": npz_file,
        ".csv": csv_file,
        ".jsonl": json_lines,
    }
    try:
        return loaders[path.suffix.lower()]
    except KeyError:
        raise DataError(
            f"{path.name} is of a kind that is not read; give a .npz, .csv or .jsonl or a folder of pictures."
        ) from None
