"""Budgets of seconds: a search that they end or shorten is known from outside of it."""

from __future__ import annotations

import time

import pytest

from seepage.core.progress import Clock, on_time_up


@pytest.mark.parametrize(("seconds", "cut"), [(None, False), (60.0, False), (0.0, True)])
def test_a_clock_tells_when_its_time_is_up(seconds: float | None, cut: bool) -> None:
    heard: list[int] = []
    with on_time_up(lambda: heard.append(1)):
        assert Clock(seconds=seconds).expired is cut
    assert bool(heard) is cut
    Clock(seconds=0.0).expired  # noqa: B018  # nobody listens any more
    assert len(heard) == int(cut)


@pytest.mark.parametrize(("seconds", "cut"), [(None, False), (60.0, False), (0.05, True)])
def test_a_clock_tells_when_steps_are_left_out(seconds: float | None, cut: bool) -> None:
    heard: list[int] = []
    with on_time_up(lambda: heard.append(1)):
        steps = Clock(seconds=seconds).steps_that_fit([(1.0, lambda: time.sleep(0.002))], 100)
    assert (steps < 100, bool(heard)) == (cut, cut)
