"""Numbers in words: one form for every report, and none that promises more than was measured."""

from __future__ import annotations

import math

import pytest

from seepage.names.metrics import METRICS
from seepage.record import SHARE, Estimate
from seepage.report.words import interval, number, percent, text, with_interval, with_unit


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.0, "0 %"),
        (1e-9, "< 0.1 %"),
        (0.0004, "< 0.1 %"),
        (0.001, "0.1 %"),
        (0.25, "25 %"),
        (1 / 3, "33.3 %"),
        (0.999, "99.9 %"),
        (0.9999, "> 99.9 %"),
        (1 - 1e-12, "> 99.9 %"),
        (1.0, "100 %"),
        (math.nan, "–"),
        (math.inf, "–"),
        (None, "–"),
    ],
)
def test_a_share_is_never_rounded_to_all_or_nothing(value: float | None, said: str) -> None:
    assert percent(value) == said
    if value is not None:
        assert text(METRICS["exact"], value) == with_unit(METRICS["label_accuracy"], value) == said


@pytest.mark.parametrize(
    ("metric", "value", "said"),
    [
        ("psnr", 100.0, "100.0 dB"),
        ("psnr", 99.98, "> 99.9 dB"),
        ("psnr", -0.01, "> -0.1 dB"),
        ("psnr", math.nan, "– dB"),
        ("mse", 0.0, "0.0000"),
        ("mse", 1e-6, "< 0.0001"),
        ("ssim", 1.0, "1.00"),
        ("ssim", 0.9999, "> 0.99"),
        ("ssim", 1 - 1e-15, "1.00"),  # an exact copy, and a rounding error
        ("ssim", -0.9999, "< -0.99"),
        ("lpips", 0.0004, "< 0.001"),
        ("rmse", 0.5, "0.500 spreads"),
    ],
)
def test_a_value_at_an_end_is_told_from_one_beside_it(metric: str, value: float, said: str) -> None:
    assert with_unit(METRICS[metric], value) == said


def test_numbers_without_an_end() -> None:
    assert [number(v, 0) for v in (0.0, -0.0, 0.3, 12.6, 1e9)] == ["0", "0", "< 1", "13", "1000000000"]


def test_intervals_have_the_form_of_their_value() -> None:
    near = Estimate(value=0.5, low=0.0004, high=0.9999, n=9, unit=SHARE)
    assert (with_interval(near), interval(near, METRICS["exact"])) == (
        "50 % (< 0.1 to > 99.9)",
        "< 0.1 to > 99.9",
    )
    decibels = Estimate(value=34.14, low=30.2, high=38.0, n=4, unit="dB")
    assert with_interval(decibels, METRICS["psnr"]) == "34.1 dB (30.2 to 38.0)"
    assert with_interval(decibels.model_copy(update={"n": 1}), METRICS["psnr"]) == "34.1 dB"
    tiny = Estimate(value=1e-5, low=0.0, high=1e-4, n=4, unit="error")
    assert with_interval(tiny, METRICS["rmse"]) == "< 0.001 spreads (< 0.001)"
    assert interval(near.model_copy(update={"low": 0.9995})) == "> 99.9"
    assert interval(decibels.model_copy(update={"low": -0.01}), METRICS["psnr"]) == "> -0.1 to 38.0"
    spoiled = Estimate.of([[math.nan, 1.0]], "dB")
    assert (with_interval(spoiled), interval(None), with_interval(None)) == ("–", "", "–")
