"""The arithmetic and the printing of a regenerated table, on rows made by hand."""

import importlib
import io
import json
import math
import pkgutil
from dataclasses import replace

import pytest
from rich.console import Console
from scipy import stats

from seepage import papers
from seepage.log import RANGES
from seepage.papers.table import Column, Figure, Row, Table


def hand_made() -> Table:
    near = Figure.over([0.21, 0.24, 0.27], paper=0.229)
    far = Figure.over([0.12, 0.14, 0.16], paper=0.229)
    own = Figure.over([0.905])
    return Table(
        name="some/table",
        title="Some table",
        columns=(Column("R", "recall", 0.05, unit="share"), Column("A", "active rows", 0.02, unit="share")),
        rows=(Row("CIFAR10", "Xavier", {"R": near, "A": own}), Row("CIFAR10", "Gaussian", {"R": far})),
        notes=("The pictures were smaller.",),
        missing=("ImageNet: data not found.",),
    )


def printed(table: Table, width: int = 200) -> str:
    stream = io.StringIO()
    table.print(Console(file=stream, width=width))
    return stream.getvalue()


def test_mean_and_interval_are_those_of_the_textbook():
    figure = Figure.over([2, 4, 4, 6], paper=4.5)
    assert (figure.mean, figure.n, figure.difference) == (4, 4, -0.5)
    expected = stats.t.interval(0.95, 3, loc=4, scale=math.sqrt(8 / 3) / 2)  # squares sum to 8, n - 1 = 3
    found = figure.estimate("count")
    assert (found.low, found.high) == pytest.approx(expected)
    assert (found.n, found.batches, found.unit) == (4, 4, "count")


def test_shares_of_runs_are_counts_and_no_interval_leaves_the_unit():
    assert Figure.over([1.0] * 10).estimate("share").low == pytest.approx(0.025**0.1)  # ten of ten runs
    assert Figure.over([0.9, 1.0, 0.95]).estimate("share").high == 1.0
    assert Figure.over([0.1, 3.0, 0.2]).estimate("seconds").low == 0.0


def test_every_column_of_a_table_has_a_unit_that_is_known():
    for module in pkgutil.iter_modules(papers.__path__):
        found = vars(importlib.import_module(f"seepage.papers.{module.name}")).values()
        columns = [one for some in found for one in (some if isinstance(some, tuple) else (some,))]
        assert all(one.unit in RANGES for one in columns if isinstance(one, Column)), module.name


def test_a_single_seed_has_no_interval():
    assert "0.905\n" in printed(hand_made()).replace(" \n", "\n")
    assert Figure.over([math.nan, 1.0]).estimate("dB").n == 2
    unknown = replace(hand_made(), rows=(Row("", "broken", {"R": Figure.over([math.nan, 1.0])}),))
    assert "nan" in printed(unknown) and "to nan" not in printed(unknown)


@pytest.mark.parametrize(
    ("mean", "outside"), [(0.30, False), (0.20, False), (0.301, True), (0.199, True), (0.25, False)]
)
def test_the_margin_itself_is_still_inside_on_both_sides(mean, outside):
    assert Figure.over([mean], paper=0.25).outside(0.05) is outside


def test_without_a_published_value_or_a_margin_nothing_is_outside():
    assert not Figure.over([9.0]).outside(0.05)
    assert not Figure.over([9.0], paper=0.0).outside(None)


def test_rows_outside_the_margin_are_marked_and_the_others_are_not():
    lines = printed(hand_made()).splitlines()
    (near,) = [line for line in lines if "Xavier" in line]
    (far,) = [line for line in lines if "Gaussian" in line]
    assert near.split()[1:] == ["0.229", "0.240", "(0.165", "to", "0.315)", "+0.011", "0.905"]
    assert far.split()[1:] == ["0.229", "0.140", "(0.090", "to", "0.190)", "*", "-0.089"]


def test_columns_are_aligned():
    lines = printed(hand_made()).splitlines()
    near, far = (next(line for line in lines if label in line) for label in ("Xavier", "Gaussian"))
    assert near.index(" to ") == far.index(" to ")
    assert near.index("+0.011") == far.index("-0.089")


def test_notes_margins_and_missing_data_are_printed():
    text = printed(hand_made())
    assert "The pictures were smaller." in text
    assert "ImageNet: data not found." in text
    assert "Margin ±0.05" in text
    assert "Margin ±0.02" not in text  # the paper has no A here, so nothing is judged
    assert "marks 1 beyond" in text


def test_a_narrow_terminal_cuts_no_number_off():
    text = printed(hand_made(), width=20)
    assert "…" not in text
    assert "* -0.089" in text


def test_json_holds_the_same_numbers():
    table = json.loads(json.dumps(hand_made().to_dict()))
    near, far = (row["figures"]["R"] for row in table["rows"])
    assert near["difference"] == pytest.approx(0.011)
    assert near["value"] == pytest.approx(0.24) and (near["n"], near["unit"]) == (3, "share")
    assert (near["low"], near["high"]) == pytest.approx(stats.t.interval(0.95, 2, 0.24, 0.03 / math.sqrt(3)))
    assert (near["outside_margin"], far["outside_margin"]) == (False, True)
    assert table["rows"][0]["figures"]["A"]["paper"] is None
    assert "A" not in table["rows"][1]["figures"]
    assert table["missing"] == ["ImageNet: data not found."]
