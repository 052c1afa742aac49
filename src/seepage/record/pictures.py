"""Arrays to PNG. Values are clipped to the value range; NaN is drawn mid-grey."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from seepage.core.errors import DataError

Array = np.ndarray[Any, Any]
Range = tuple[float, float]
MID_GREY = 128
_PAPER, _ABSENT, _STRIKE = (255, 255, 255), (205, 205, 205), (150, 150, 150)


def to_pixels(picture: Array, value_range: Range | None = None) -> Array:
    """(C, H, W) or (H, W) to uint8 (H, W) or (H, W, 3).

    One channel is grey, three are RGB; of four or more the first three are shown as RGB (an alpha channel
    is thus dropped), and two are averaged to grey. Without a value range the array's own extremes are used.

    >>> to_pixels(np.array([[0.0, 0.5], [1.0, float("nan")]]), (0.0, 1.0)).tolist()
    [[0, 128], [255, 128]]
    """
    if picture.ndim == 2:
        picture = picture[None]
    if picture.ndim != 3 or 0 in picture.shape:
        raise DataError(
            f"cannot draw an array of shape {tuple(picture.shape)}: "
            "a picture has the shape (C, H, W) or (H, W)."
        )
    values = picture.astype(np.float64)
    low, high = value_limits(values, value_range)
    values = values.mean(axis=0, keepdims=True) if len(values) == 2 else values[:3]
    unit = np.clip((values - low) / (high - low), 0.0, 1.0)
    missing = np.isnan(unit)
    pixels = np.where(missing, MID_GREY, np.floor(np.where(missing, 0.0, unit) * 255 + 0.5)).astype(np.uint8)
    return pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)  # (H, W) or (H, W, 3)


def value_limits(values: Array, value_range: Range | None) -> Range:
    """The given range, or the extremes of the finite values where none is given."""
    if value_range is not None:
        if not value_range[0] < value_range[1]:
            raise DataError(
                f"value range {value_range} is empty: give the lowest and the highest value, in this order."
            )
        return value_range
    finite = values[np.isfinite(values)]
    if not finite.size:
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    return (low, high) if low < high else (low - 0.5, low + 0.5)


def to_png(picture: Array, value_range: Range | None = None, *, longest: int | None = None) -> bytes:
    """One picture as PNG, pixel for pixel; only one whose side exceeds `longest` is shrunk to it.

    >>> to_png(np.zeros((1, 4, 4)), (0.0, 1.0))[:4]
    b'\\x89PNG'
    """
    image = Image.fromarray(to_pixels(picture, value_range))
    if longest is not None and max(image.size) > longest:
        image.thumbnail((longest, longest), Image.Resampling.LANCZOS)
    return _encode(image)


def picture_grid(
    truth: Array,
    reconstruction: Array,
    recovered: Sequence[bool] | Array,
    value_range: Range | None = None,
    *,
    columns: int = 10,
    limit: int = 100,
    side: int = 64,
) -> bytes:
    """Originals (n, C, H, W) with their reconstructions right below, `columns` pairs to a line, as PNG.

    What was not recovered is a crossed-out light-grey tile. Small pictures are enlarged by a whole factor to
    about `side` pixels; only the first `limit` pairs are drawn.
    """
    if truth.shape != reconstruction.shape or len(recovered) != len(truth):
        raise DataError(
            f"originals {tuple(truth.shape)}, reconstructions {tuple(reconstruction.shape)} and "
            f"{len(recovered)} marks do not belong together: give one reconstruction and one mark for each "
            "original."
        )
    if not len(truth):
        raise DataError("there is no picture to draw: give at least one original.")
    limits = value_limits(truth, value_range)
    shown = min(len(truth), limit)
    height, width = to_pixels(truth[0], limits).shape[:2]
    factor = max(1, round(side / max(height, width)))
    height, width, gap = height * factor, width * factor, 6
    columns = min(columns, shown)
    lines = -(-shown // columns)
    step = 2 * height + 3 * gap  # a pair is two tiles with half a gap between, then space to the next line
    sheet = Image.new("RGB", (columns * (width + gap) + gap, lines * step), _PAPER)
    for i in range(shown):
        x, y = gap + (i % columns) * (width + gap), gap + (i // columns) * step
        sheet.paste(_tile(truth[i], limits, (width, height)), (x, y))
        below = _tile(reconstruction[i], limits, (width, height)) if recovered[i] else _absent(width, height)
        sheet.paste(below, (x, y + height + gap // 2))
    return _encode(sheet)


def _tile(picture: Array, limits: Range, size: tuple[int, int]) -> Image.Image:
    image = Image.fromarray(to_pixels(picture, limits)).convert("RGB")
    return image.resize(size, Image.Resampling.NEAREST)


def _absent(width: int, height: int) -> Image.Image:
    tile = Image.new("RGB", (width, height), _ABSENT)
    draw = ImageDraw.Draw(tile)
    draw.line((0, 0, width - 1, height - 1), fill=_STRIKE)
    draw.line((0, height - 1, width - 1, 0), fill=_STRIKE)
    return tile


def _encode(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()
