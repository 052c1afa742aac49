"""The same datasets from the Hugging Face hub, for whoever has a network and the `hub` extra."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from PIL import Image

from seepage.core.errors import DataError
from seepage.data.pictures import UNREADABLE_PICTURE, centre_square


@dataclass(frozen=True)
class HubSource:
    """Where a dataset lies on the hub and what its columns are called."""

    repository: str
    inputs: str
    labels: str
    splits: Mapping[str, str]
    """Our name of a split to the hub's."""


class HubRows:
    """Rows of one split, with the hub's errors turned into one sentence.

    `file` is what the data folder would have to hold instead.
    """

    def __init__(self, source: HubSource, *, split: str, file: str, streaming: bool = False) -> None:
        self.source = source
        self._folder = f"set SEEPAGE_DATA to a folder with {file}"
        try:
            import datasets
        except ImportError:
            raise DataError(
                f"{source.repository} is not on this machine; {self._folder} "
                "or run pip install 'seepage[hub]'."
            ) from None
        # DatasetsError does not derive from a built-in family of errors
        self._errors = (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError)
        try:
            self._rows = datasets.load_dataset(
                source.repository, split=source.splits[split], streaming=streaming
            )
        except self._errors as error:
            raise self._unreachable(error) from error

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        try:
            yield from self._rows
        except self._errors as error:
            raise self._unreachable(error) from error

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(self._rows.features[self.source.labels].names)

    def _unreachable(self, error: BaseException) -> DataError:
        # A gated or missing repository, no network, offline mode: the class says which.
        return DataError(
            f"{self.source.repository} could not be fetched from the Hugging Face hub "
            f"({type(error).__name__}); check the network and the access rights, or {self._folder}."
        )


def hub_pictures(
    rows: HubRows, *, mode: str, size: int | None = None, limit: int | None = None
) -> tuple[np.ndarray[Any, Any], list[int]]:
    """Pixels (N, H, W) or (N, H, W, 3) uint8 and labels. With `size`, smaller pictures are skipped."""
    pixels: list[np.ndarray[Any, Any]] = []
    labels: list[int] = []
    for row in islice(_large_enough(rows, size), limit):
        try:
            picture: Image.Image = row[rows.source.inputs].convert(mode)
        except UNREADABLE_PICTURE as error:
            raise DataError(
                f"{rows.source.repository} holds a picture that cannot be read ({type(error).__name__}); "
                "delete its copy in the Hugging Face cache and try again."
            ) from error
        pixels.append(np.asarray(picture if size is None else centre_square(picture, size)))
        labels.append(int(row[rows.source.labels]))
    if not pixels:
        raise DataError(f"{rows.source.repository} has no picture of the wanted size; give a smaller size.")
    return np.stack(pixels), labels


def _large_enough(rows: HubRows, size: int | None) -> Iterator[Mapping[str, Any]]:
    return (row for row in rows if size is None or min(row[rows.source.inputs].size) >= size)
