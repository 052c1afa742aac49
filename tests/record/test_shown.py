"""Which examples are looked at first, against a sort that is written out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from seepage.record.shown import drawn, most_exposed_first


@pytest.mark.parametrize("higher_leaks", [True, False])
def test_exact_copies_come_first_then_the_score_and_last_what_was_not_recovered(higher_leaks: bool) -> None:
    rng = np.random.default_rng(0)
    exact, recovered = rng.random(60) < 0.2, rng.random(60) < 0.7
    scores = rng.integers(1, 9, 60) / 4.0
    scores[::7] = math.nan

    def key(i: int) -> tuple[bool, bool, float]:
        leak = scores[i] if higher_leaks else -scores[i]
        return (not exact[i], not recovered[i], math.inf if math.isnan(leak) else -leak)

    expected = sorted(range(60), key=key)  # stable: equal ones stay in their order
    order = most_exposed_first(exact, recovered, scores, higher_leaks=higher_leaks)
    assert order.tolist() == expected


def test_a_score_that_does_not_exist_is_the_least_exposed() -> None:
    for higher_leaks in (True, False):
        order = most_exposed_first([0, 0], [1, 1], [math.nan, 0.5], higher_leaks=higher_leaks)
        assert order.tolist() == [1, 0]


def test_as_many_are_drawn_as_fit_and_other_ones_for_another_number() -> None:
    assert len(drawn(5000, 2**20)) == 32 and len(drawn(5000, 2**19)) == 64
    assert drawn(20, 0) == list(range(20)) and drawn(7, 2**26) == []
    assert drawn(5000, 2**20) == sorted(set(drawn(5000, 2**20))) != drawn(4999, 2**20)
