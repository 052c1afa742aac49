"""The spread: geometry, quantiles and the named extremes against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seepage.names.metrics import METRICS, facts_of, leading
from seepage.report.charts.axes import nice_ticks
from seepage.report.charts.lanes import LANE, SIDE, WIDTH, draw
from seepage.report.distribution import build_distribution


def test_quantiles_and_extremes(new_log):
    values = [15.0, 40.0, 11.0, 22.0, 30.0, 18.0, 12.5]
    builder = new_log(input_changes={"class_names": ("cat", "dog", "bird")})
    log = builder.add_images("a", values).build()
    distribution = build_distribution(log.header, log.cells)
    assert distribution is not None
    expected = np.quantile(values, [0, 0.1, 0.25, 0.5, 0.75, 0.9, 1])
    assert [row[1] for row in distribution.quantiles] == [f"{v:.1f}" for v in expected]
    assert [(e.index, e.class_name, e.score) for e in distribution.most] == [
        (1, "dog", "40.0"),
        (4, "dog", "30.0"),
        (3, "cat", "22.0"),
    ]
    assert [e.index for e in distribution.least] == [2, 6, 0]


def test_most_leaked_means_smallest_error(new_log):
    scores = [{"rmse": v, "exact": 0.0} for v in (0.5, 0.1, 0.9, 0.7)]
    log = new_log(modality="tabular").add("a", scores, guess={}).build()
    distribution = build_distribution(log.header, log.cells)
    assert distribution is not None
    assert [e.index for e in distribution.most] == [1, 0]
    assert not distribution.has_guess


def test_a_single_example_has_no_spread(new_log):
    log = new_log().add_images("a", [9.0]).build()
    assert build_distribution(log.header, log.cells) is None


@pytest.mark.parametrize(("count", "shape"), [(50, "dot"), (1000, "bar")])
def test_every_example_is_drawn_inside_its_lane(count, shape):
    values = list(np.random.default_rng(0).normal(20, 4, count))
    plot = draw(METRICS["psnr"], values, [10.0] * count)
    for lane in plot.lanes:
        for mark in lane.marks:
            assert mark.shape == shape
            assert SIDE - 5 <= mark.x <= WIDTH - SIDE + 5
            assert lane.top - 1 <= mark.y - (mark.height if shape == "dot" else 0)
            assert mark.y <= lane.floor
    if shape == "dot":
        assert len(plot.lanes[0].marks) == count
    else:
        areas = [sum(mark.height for mark in lane.marks) for lane in plot.lanes]
        assert max(mark.height for mark in plot.lanes[0].marks) == pytest.approx(LANE)
        assert areas[1] == pytest.approx(LANE)  # all guesses in one bin


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6))
def test_ticks_enclose_the_values_and_are_even(low, width):
    ticks = nice_ticks(low, low + width)
    assert ticks[0] <= low + 1e-6 and ticks[-1] >= low + width - 1e-6
    assert 2 <= len(ticks) <= 8
    steps = np.diff(ticks)
    assert np.allclose(steps, steps[0], rtol=1e-3)


def test_unknown_metrics_keep_their_name_and_missing_ones_fall_back(new_log):
    assert facts_of("my_metric").title == "my metric"
    modality = new_log().header().input.modality
    assert leading({"mse"}, modality).name == "mse"
    assert leading({"cosine"}, modality).name == "cosine"
    assert leading((), modality).name == "psnr"
