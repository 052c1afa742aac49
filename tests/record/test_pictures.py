"""Pictures: what goes in comes out of the PNG, pixel for pixel."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from seepage.core.errors import DataError
from seepage.record.pictures import picture_grid, to_pixels, to_png


def read(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)))


@pytest.mark.parametrize("value_range", [(0.0, 1.0), (0.0, 255.0), (-1.0, 1.0)])
def test_every_grey_level_survives_the_round_trip(value_range):
    levels = np.arange(256).reshape(16, 16)
    low, high = value_range
    values = (low + levels / 255 * (high - low)).astype(np.float32)
    assert np.array_equal(read(to_png(values[None], value_range)), levels)
    assert np.array_equal(read(to_png(values, value_range)), levels)


def test_colour_round_trip_and_channel_rules():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3))
    chw = pixels.transpose(2, 0, 1) / 255
    assert np.array_equal(read(to_png(chw, (0.0, 1.0))), pixels)
    with_alpha = np.concatenate([chw, np.zeros((1, 5, 7))])
    assert np.array_equal(read(to_png(with_alpha, (0.0, 1.0))), pixels)
    two = np.stack([np.zeros((2, 2)), np.full((2, 2), 200 / 255)])
    assert np.array_equal(read(to_png(two, (0.0, 1.0))), np.full((2, 2), 100))


def test_clipping_nan_and_unknown_range():
    odd = np.array([[-5.0, 7.0], [np.nan, np.inf]])
    assert to_pixels(odd, (0.0, 1.0)).tolist() == [[0, 255], [128, 255]]
    assert to_pixels(np.array([[2.0, 4.0]])).tolist() == [[0, 255]]
    assert to_pixels(np.full((1, 2), 3.0)).tolist() == [[128, 128]]
    assert to_pixels(np.full((1, 2), np.nan)).tolist() == [[128, 128]]


def test_only_large_pictures_are_shrunk():
    assert read(to_png(np.zeros((40, 80)), (0.0, 1.0), longest=20)).shape == (10, 20)
    assert read(to_png(np.zeros((10, 20)), (0.0, 1.0), longest=20)).shape == (10, 20)


def test_grid_holds_originals_above_reconstructions():
    truth = np.zeros((3, 1, 4, 4))
    truth[0], truth[1], truth[2] = 0.2, 0.4, 0.6
    grid = read(picture_grid(truth, 1 - truth, [True, False, True], (0.0, 1.0), columns=2, side=8))
    tile, gap = 8, 6  # 4 pixels doubled
    step = 2 * tile + 3 * gap
    assert grid.shape == (2 * step, 2 * (tile + gap) + gap, 3)
    centre = [(gap + 4, gap + 4 + c * (tile + gap)) for c in range(2)]
    assert grid[centre[0]].tolist() == [51] * 3
    assert grid[centre[1]].tolist() == [102] * 3
    below = tile + gap // 2
    assert grid[centre[0][0] + below, centre[0][1]].tolist() == [204] * 3
    assert grid[centre[1][0] + below - 3, centre[1][1] - 1].tolist() == [205] * 3  # beside the cross
    assert grid[centre[0][0] + step, centre[0][1]].tolist() == [153] * 3  # third pair, next line


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: to_png(np.zeros(4)), "shape"),
        (lambda: to_png(np.zeros((1, 0, 4))), "shape"),
        (lambda: to_png(np.zeros((4, 4)), (1.0, 1.0)), "empty"),
        (
            lambda: picture_grid(np.zeros((2, 1, 4, 4)), np.zeros((1, 1, 4, 4)), [True, True]),
            "belong together",
        ),
        (lambda: picture_grid(np.zeros((0, 1, 4, 4)), np.zeros((0, 1, 4, 4)), []), "no picture"),
    ],
)
def test_bad_input_gets_one_sentence(call, words):
    with pytest.raises(DataError, match=words):
        call()
