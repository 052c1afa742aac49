"""Differences and their intervals, against published values and a closed form."""

from __future__ import annotations

import math

import pytest

from seepage.record import Estimate
from seepage.report.compared.difference import difference


def _wilson(k: int, n: int, z: float = 1.959964) -> Estimate:
    middle = (2 * k + z * z) / (2 * (n + z * z))
    half = z * math.sqrt(z * z + 4 * k * (1 - k / n)) / (2 * (n + z * z))
    return Estimate(value=k / n, low=middle - half, high=middle + half, n=n, unit="share")


@pytest.mark.parametrize(
    ("later", "first", "low", "high"),
    [
        ((56, 70), (48, 80), 0.0524, 0.3339),
        ((9, 10), (3, 10), 0.1705, 0.8090),
        ((10, 10), (0, 10), 0.6075, 1.0),
    ],
)
def test_newcombes_published_examples(later, first, low, high):
    """Newcombe 1998, Statistics in Medicine 17, Table II, method 10, examples (a), (b) and (h)."""
    found = difference(_wilson(*first), _wilson(*later))
    assert (found.low, found.high) == pytest.approx((low, high), abs=6e-5)


def test_of_two_symmetric_intervals_the_squares_add_up():
    one = Estimate(value=2.0, low=2.0 - 0.3, high=2.0 + 0.3, n=5)
    other = Estimate(value=5.0, low=5.0 - 0.4, high=5.0 + 0.4, n=5)
    found = difference(one, other)
    assert (found.value, found.low, found.high) == pytest.approx((3.0, 2.5, 3.5))


def test_what_was_not_measured_has_no_difference():
    known = Estimate.of_counts([(3, 6)])
    stopped = Estimate(value=0.0, low=0.0, high=1.0, n=0, unit="share", batches=0)
    assert difference(known, None) is None
    assert difference(None, known) is None
    assert difference(known, stopped) is None
    spoiled = Estimate(value=math.nan, low=math.nan, high=math.nan, n=3)
    assert difference(known, spoiled).word == "not measured"
