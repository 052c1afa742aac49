"""Rows of figures with intervals: places follow the axis, and nothing is drawn where nothing was measured."""

from __future__ import annotations

from seepage.report.charts.intervals import LEFT, RIGHT, Figure, draw_intervals


def _figure(value: float, low: float, high: float) -> Figure:
    return Figure(value=value, low=low, high=high, title="t")


def test_places_are_linear_and_ends_stay_on_the_axis():
    rows = [("a", [_figure(0.25, -0.5, 0.5), None]), ("b", [None, _figure(1.0, 0.9, 1.5)])]
    chart = draw_intervals(rows, ["x", "y"], percent=True, what="w", reach=(0.0, 1.0))
    first, second = chart.rows[0].marks[0], chart.rows[1].marks[0]
    assert first.x == LEFT + 0.25 * (RIGHT - LEFT)
    assert (first.low, second.x, second.high) == (LEFT, RIGHT, RIGHT)
    assert (first.kind, second.kind) == ("first", "second")
    assert second.y > first.y


def test_nothing_measured_is_no_picture():
    assert draw_intervals([("a", [None])], ["x"], percent=False, what="w") is None
