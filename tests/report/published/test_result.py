"""The arithmetic of a regenerated table, on rows made by hand."""

import math

import pytest
from scipy import stats
from tests.report.published.hand_made import fake_log, hand_made

from seepage.core.errors import LogError
from seepage.record import AttackRef, Cell, Column, Cost, Example
from seepage.report.published.result import Figure, Table, _chosen, scores_of


def test_mean_and_interval_are_those_of_the_textbook():
    figure = Figure(values=(2, 4, 4, 6), paper=4.5)
    assert (figure.mean, figure.n, figure.difference) == (4, 4, -0.5)
    expected = stats.t.interval(0.95, 3, loc=4, scale=math.sqrt(8 / 3) / 2)  # squares sum to 8, n - 1 = 3
    found = figure.estimate("count")
    assert (found.low, found.high) == pytest.approx(expected)
    assert (found.n, found.batches, found.unit) == (4, 4, "count")


def test_shares_of_runs_are_counts_and_no_interval_leaves_the_unit():
    assert Figure(values=(1.0,) * 10).estimate("share").low == pytest.approx(0.025**0.1)  # ten of ten runs
    assert Figure(values=(0.9, 1.0, 0.95)).estimate("share").high == 1.0
    assert Figure(values=(0.1, 3.0, 0.2)).estimate("seconds").low == 0.0


@pytest.mark.parametrize(
    ("mean", "outside"), [(0.30, False), (0.20, False), (0.301, True), (0.199, True), (0.25, False)]
)
def test_the_margin_itself_is_still_inside_on_both_sides(mean, outside):
    assert Figure(values=(mean,), paper=0.25).outside(0.05) is outside


def test_without_a_published_value_or_a_margin_nothing_is_outside():
    assert not Figure(values=(9.0,)).outside(0.05)
    assert not Figure(values=(9.0,), paper=0.0).outside(None)


def test_json_holds_the_same_numbers():
    table = hand_made().to_json()
    near, far = (row["figures"]["R"] for row in table["rows"])
    assert near["difference"] == pytest.approx(0.011)
    assert near["value"] == pytest.approx(0.24) and (near["n"], near["unit"]) == (3, "share")
    assert (near["low"], near["high"]) == pytest.approx(stats.t.interval(0.95, 2, 0.24, 0.03 / math.sqrt(3)))
    assert (near["outside_margin"], far["outside_margin"]) == (False, True)
    assert table["rows"][0]["figures"]["A"]["paper"] is None
    assert "A" not in table["rows"][1]["figures"]
    assert table["missing"] == ["ImageNet: data not found."]


def cell(seed, **batch_scores):
    examples = tuple(
        Example(index=i, client=0, label=0, recovered=True, scores={"psnr": value})
        for i, value in enumerate((10.0, 20.0))
    )
    return Cell(
        attack=AttackRef(name="a"),
        seed=seed,
        status="done",
        examples=examples,
        batch_scores=batch_scores,
        cost=Cost(seconds=3.0, rounds=2, peak_memory_mb=0.0),
    )


def test_a_cell_has_means_over_its_examples_scores_of_the_batch_and_what_it_took():
    found = scores_of(cell(0, recall=0.5))
    assert found == {"psnr": 15.0, "recall": 0.5, "seconds": 3.0, "rounds": 2.0, "complete": 0.0}
    assert scores_of(cell(0, psnr=7.0))["psnr"] == 7.0  # what a probe measured counts


def test_the_first_score_that_is_there_is_taken_and_a_star_takes_all_that_begin_so():
    scores = {"R of user 0": 0.1, "R of user 1": 0.3, "recall": 0.5}
    column = Column(name="R", meaning="", score=("R of user *", "recall"))
    assert [value for _, value in _chosen(column, scores)] == [0.1, 0.3]
    assert [value for _, value in _chosen(column, {"recall": 0.5})] == [0.5]
    assert list(_chosen(column, {})) == []


def test_percentiles_are_over_batches_of_the_mean_over_runs():
    """101 batches whose two runs average to 0, .01, ..., 1: the 5th percentile is .05."""
    runs = [
        cell(run, **{f"R of batch {k}": k / 100 + 0.1 * (2 * run - 1) for k in range(101)}) for run in (0, 1)
    ]
    columns = [
        Column(name="low", meaning="", score="R of batch *", take=0.05),
        Column(name="best", meaning="", score="R of batch *", take="best"),
        Column(name="scaled", meaning="", score="psnr", times=2.0),
    ]
    (row,) = Table.of(fake_log(columns, runs)).rows
    assert row.figures["low"].values == pytest.approx((0.05,))
    assert row.figures["best"].values == pytest.approx((1.1,))
    assert row.figures["scaled"].values == (30.0, 30.0)


def test_a_log_without_a_layout_and_one_that_names_other_points_are_refused():
    log = fake_log([], [])
    log.header.spec.pop("layout")
    with pytest.raises(LogError, match="does not say how its table is laid out"):
        Table.of(log)
    log = fake_log([], [])
    log.header.spec["layout"]["rows"][0]["points"] = ["../elsewhere"]
    with pytest.raises(LogError, match="names a point that is not there"):
        Table.of(log)
