"""A table in the terminal, on rows made by hand."""

import io
import math
from dataclasses import replace

from rich.console import Console
from tests.report.published.hand_made import hand_made

from seepage.report.published.result import Figure, Row, Table
from seepage.report.published.terminal import print_table


def printed(table: Table, width: int = 200) -> str:
    stream = io.StringIO()
    print_table(table, Console(file=stream, width=width))
    return stream.getvalue()


def test_a_single_seed_has_no_interval():
    assert "0.905\n" in printed(hand_made()).replace(" \n", "\n")
    unknown = replace(hand_made(), rows=(Row("", "broken", {"R": Figure(values=(math.nan, 1.0))}),))
    assert "nan" in printed(unknown) and "to nan" not in printed(unknown)


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


def test_the_legend_counts_runs_and_explains_a_difference_only_where_there_is_one():
    def told(*counts: int, paper: float | None) -> str:
        rows = tuple(Row("", f"row {n}", {"R": Figure(values=(0.5,) * n, paper=paper)}) for n in counts)
        (line,) = [
            line for line in printed(replace(hand_made(), rows=rows)).splitlines() if "ours: m" in line
        ]
        return line.strip()

    assert told(1, paper=None) == "ours: mean (95 % interval) over 1 run."
    assert told(50, 1, paper=None) == "ours: mean (95 % interval) over 1 or 50 runs."
    assert told(2, paper=0.5).startswith(
        "ours: mean (95 % interval) over 2 runs; difference: ours minus paper"
    )
