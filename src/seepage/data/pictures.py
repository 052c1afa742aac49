"""Pictures on disk: decoding one safely, and a folder of them with its labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageOps

from seepage.core.errors import DataError, SpecError
from seepage.core.types import Modality
from seepage.core.user_code import UNREADABLE
from seepage.data.arrays import from_arrays
from seepage.data.dataset import Dataset
from seepage.data.tables import class_indices, read_table

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
# Named formats only: Pillow would otherwise hand PostScript to an external interpreter.
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
UNREADABLE_PICTURE = (*UNREADABLE, Image.DecompressionBombError)
_GREY_MODES = frozenset({"1", "L", "LA"})
Pixels = np.ndarray[Any, Any]


def picture_folder(
    path: Path, /, *, modality: Modality | None = None, size: int | None = None, limit: int | None = None
) -> Dataset:
    """A folder with one subfolder per class, or with pictures and a labels.csv (file, label or class_index).

    `size` shrinks the short side and cuts the centre square; without it all pictures must agree in size.
    `limit` keeps that many, evenly spread over the folder.
    """
    check_positive("size", size)
    check_positive("limit", limit)
    if modality not in (None, Modality.IMAGE):
        raise SpecError(f"{path.name} is a folder of pictures; leave modality out instead of '{modality}'.")
    files, labels, names = _from_csv(path) if (path / "labels.csv").is_file() else _from_subfolders(path)
    keep = spread(len(files), limit)
    pixels = read_pictures([files[i] for i in keep], size=size)
    return from_arrays(
        pixels,
        [labels[i] for i in keep],
        name=path.name,
        source=f"folder {path.name}",
        layout="HWC",
        class_names=names,
    )


def read_pictures(files: Sequence[Path], *, size: int | None, mode: Literal["RGB"] | None = None) -> Pixels:
    """(N, H, W, C) uint8: one channel if every picture is grey, three otherwise or with mode="RGB"."""
    pictures = [decode(file, size=size) for file in files]
    if mode == "RGB" or any(p.mode == "RGB" for p in pictures):
        pictures = [p.convert("RGB") for p in pictures]
    for file, picture in zip(files, pictures, strict=True):
        if picture.size != pictures[0].size:
            raise DataError(
                f"{file.name} is {picture.width}x{picture.height} but {files[0].name} is "
                f"{pictures[0].width}x{pictures[0].height}; give size=, so that all are cut to one size."
            )
    stacked = np.stack([np.asarray(p) for p in pictures])
    return stacked[..., None] if stacked.ndim == 3 else stacked


def decode(file: Path, *, size: int | None) -> Image.Image:
    """One picture as 8-bit grey or RGB, upright, cut to a square of `size` if given."""
    try:
        with Image.open(file, formats=_FORMATS) as opened:
            picture = ImageOps.exif_transpose(opened)
            picture.load()
    except UNREADABLE_PICTURE as error:
        raise DataError(
            f"{file.name} cannot be read as a picture ({type(error).__name__}); repair or remove it."
        ) from None
    if picture.mode.startswith(("I", "F")):
        raise DataError(f"{file.name} has more than 8 bits per channel; save it as an 8-bit picture.")
    picture = picture.convert("L" if picture.mode in _GREY_MODES else "RGB")
    return picture if size is None else centre_square(picture, size)


def centre_square(picture: Image.Image, size: int) -> Image.Image:
    """Short side resized to `size`, then the centre square.

    >>> centre_square(Image.new("RGB", (40, 20)), 10).size
    (10, 10)
    """
    scale = size / min(picture.size)
    width, height = (max(size, round(side * scale)) for side in picture.size)
    resized = picture.resize((width, height), Image.Resampling.BICUBIC)
    left, top = (width - size) // 2, (height - size) // 2
    return resized.crop((left, top, left + size, top + size))


def spread(count: int, limit: int | None) -> list[int]:
    """`limit` indices out of `count`, evenly spread and without a seed.

    >>> spread(10, 4), spread(3, None)
    ([0, 2, 5, 7], [0, 1, 2])
    """
    if limit is None or limit >= count:
        return list(range(count))
    return [i * count // limit for i in range(limit)]


def check_positive(name: str, value: int | None) -> None:
    """A SpecError unless `value` is None or a whole number above zero."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise SpecError(f"{name} is {value!r}; give a whole number above zero.")


def inside(folder: Path, file: str) -> Path:
    """The file of that name in the folder, or a DataError if it is missing or leads out of the folder."""
    path = folder / file
    if not file or "\0" in file or not path.resolve().is_relative_to(folder.resolve()):
        raise DataError(
            f"labels.csv names {file!r}, which is not inside {folder.name}; list files of that folder."
        )
    if not path.is_file():
        raise DataError(f"labels.csv names {file}, which {folder.name} does not hold; correct labels.csv.")
    return path


def _from_csv(folder: Path) -> tuple[list[Path], list[int], tuple[str, ...]]:
    header, rows = read_table(folder / "labels.csv")
    label = next((c for c in ("label", "class_index") if c in header), None)
    if "file" not in header or label is None:
        raise DataError(
            f"labels.csv of {folder.name} has the columns {', '.join(header)}; "
            "it needs one called file and one called label or class_index."
        )
    files = [inside(folder, cells[header.index("file")]) for _, cells in rows]
    labels, names = class_indices([cells[header.index(label)] for _, cells in rows], column=label)
    return files, labels, names


def _from_subfolders(folder: Path) -> tuple[list[Path], list[int], tuple[str, ...]]:
    classes = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not classes:
        raise DataError(
            f"{folder.name} has neither class subfolders nor a labels.csv; "
            "give one subfolder per class, or a labels.csv with the columns file and label."
        )
    files: list[Path] = []
    labels: list[int] = []
    for label, subfolder in enumerate(classes):
        found = sorted(p for p in subfolder.iterdir() if p.suffix.lower() in SUFFIXES)
        if not found:
            raise DataError(
                f"{folder.name}/{subfolder.name} holds no picture ({', '.join(sorted(SUFFIXES))}); "
                "add some or remove the subfolder."
            )
        files += found
        labels += [label] * len(found)
    return files, labels, tuple(p.name for p in classes)
