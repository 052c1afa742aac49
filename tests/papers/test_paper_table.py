"""The arithmetic and the printing of a regenerated table, on rows made by hand."""

import io
import json
import math

import pytest
from rich.console import Console

from seepage.papers.table import Column, Figure, Row, Table


def hand_made() -> Table:
    near = Figure(mean=0.24, spread=0.03, n=10, paper=0.229)
    far = Figure(mean=0.14, spread=0.02, n=10, paper=0.229)
    own = Figure(mean=0.905, spread=None, n=10)
    return Table(
        name="some/table",
        title="Some table",
        columns=(Column("R", "recall", 0.05), Column("A", "active rows", 0.02)),
        rows=(Row("CIFAR10", "Xavier", {"R": near, "A": own}), Row("CIFAR10", "Gaussian", {"R": far})),
        notes=("The pictures were smaller.",),
        missing=("ImageNet: data not found.",),
    )


def printed(table: Table, width: int = 200) -> str:
    stream = io.StringIO()
    table.print(Console(file=stream, width=width))
    return stream.getvalue()


def test_mean_and_sample_deviation_are_those_of_the_textbook():
    figure = Figure.over([2, 4, 4, 4, 5, 5, 7, 9], paper=4.5)
    assert figure.mean == 5
    assert figure.spread == pytest.approx(math.sqrt(32 / 7))  # squares sum to 32, n - 1 = 7
    assert (figure.n, figure.difference) == (8, 0.5)


def test_a_single_seed_has_no_spread():
    assert Figure.over([0.3]).spread is None


@pytest.mark.parametrize(
    ("mean", "outside"), [(0.30, False), (0.20, False), (0.301, True), (0.199, True), (0.25, False)]
)
def test_the_margin_itself_is_still_inside_on_both_sides(mean, outside):
    assert Figure(mean=mean, spread=None, n=1, paper=0.25).outside(0.05) is outside


def test_without_a_published_value_or_a_margin_nothing_is_outside():
    assert not Figure(mean=9.0, spread=None, n=1).outside(0.05)
    assert not Figure(mean=9.0, spread=None, n=1, paper=0.0).outside(None)


def test_rows_outside_the_margin_are_marked_and_the_others_are_not():
    lines = printed(hand_made()).splitlines()
    (near,) = [line for line in lines if "Xavier" in line]
    (far,) = [line for line in lines if "Gaussian" in line]
    assert near.split()[1:] == ["0.229", "0.240", "±", "0.030", "+0.011", "0.905"]
    assert far.split()[1:] == ["0.229", "0.140", "±", "0.020", "*", "-0.089"]


def test_columns_are_aligned():
    lines = printed(hand_made()).splitlines()
    near, far = (next(line for line in lines if label in line) for label in ("Xavier", "Gaussian"))
    assert near.index("±") == far.index("±")
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
    assert (near["outside_margin"], far["outside_margin"]) == (False, True)
    assert table["rows"][0]["figures"]["A"]["paper"] is None
    assert "A" not in table["rows"][1]["figures"]
    assert table["missing"] == ["ImageNet: data not found."]
