"""A reconstruction, or any pictures or values, to look at in a notebook or to save."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from seepage.core.errors import DataError
from seepage.core.types import INPUT_SPACE, Reconstruction
from seepage.record.pictures import Array, picture_grid
from seepage.report.frame import fragment
from seepage.report.words import plural, short_number

SHOWN = 20
_COLUMNS = 12


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What `seepage.show` returns: a notebook draws it, `print` tells it, `save` keeps the picture."""

    text: str
    png: bytes | None = None
    rows: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        picture = None if self.png is None else base64.b64encode(self.png).decode()
        return fragment("shown.html.j2", shown=self, picture=picture)

    def save(self, path: Path | str) -> Path:
        """Write the picture as PNG."""
        if self.png is None:
            raise DataError("there is no picture to save: these are rows of numbers.")
        Path(path).write_bytes(self.png)
        return Path(path)


def show(found: Any, *, truth: Any = None, value_range: tuple[float, float] | None = None) -> Shown:
    """Candidates of an attack, or pictures or rows of any kind, beside the originals where they are given.

    found: a `Reconstruction`, or an array or tensor of shape (n, C, H, W), (n, H, W) or (n, columns).
    truth: originals of the same shape, one for each. value_range: lowest and highest value of a picture.

    >>> show(np.zeros((2, 1, 4, 4)))
    2 pictures of shape 1×4×4
    """
    notes: tuple[str, ...] = ()
    claimed = None
    if isinstance(found, Reconstruction):
        notes = found.notes
        claimed = None if found.claimed is None else int(found.claimed.sum())
        if found.space != INPUT_SPACE:
            notes = (f"Features that enter layer '{found.space}', not inputs.", *notes)
    values = _array(found.values if isinstance(found, Reconstruction) else found)
    originals = None if truth is None else _array(truth)
    if originals is not None and originals.shape != values.shape:
        raise DataError(
            f"originals of shape {originals.shape} do not belong to candidates of shape {values.shape}: give "
            "one for each, in their order."
        )
    vouched = "" if claimed is None else f", {claimed} of them vouched for by the attack"
    if values.ndim in (3, 4) and len(values):
        shape = "×".join(map(str, values.shape[1:]))
        text = f"{plural(len(values), 'picture')} of shape {shape}{vouched}"
        return Shown(text=text, png=_picture(values, originals, value_range), notes=notes)
    text = f"{plural(len(values), 'row')} of {plural(int(np.prod(values.shape[1:])), 'value')}{vouched}"
    return Shown(text=text, rows=tuple(_rows(values, originals)), notes=notes)


def _array(given: Any) -> Array:
    values = given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    if values.ndim < 2 or not np.issubdtype(values.dtype, np.number):
        raise DataError(
            f"an array of shape {values.shape} cannot be shown: give pictures (n, C, H, W), or rows."
        )
    return values[:, None] if values.ndim == 3 else values


def _picture(values: Array, originals: Array | None, value_range: tuple[float, float] | None) -> bytes:
    if originals is not None:
        return picture_grid(originals, values, [True] * len(values), value_range, limit=SHOWN)
    half = -(-min(len(values), SHOWN) // 2)
    below = values[half : 2 * half]
    there = [i < len(below) for i in range(half)]
    padded = np.concatenate([below, values[: half - len(below)]]) if len(below) < half else below
    return picture_grid(values[:half], padded, there, value_range, limit=SHOWN)


def _rows(values: Array, originals: Array | None) -> Sequence[tuple[str, ...]]:
    flat = values.reshape(len(values), -1)[:SHOWN, :_COLUMNS]
    rows = []
    for i, row in enumerate(flat):
        if originals is not None:
            known = originals.reshape(len(originals), -1)[i, :_COLUMNS]
            rows.append(("original", *(short_number(float(v)) for v in known)))
        rows.append(("rebuilt", *(short_number(float(v)) for v in row)))
    return rows
