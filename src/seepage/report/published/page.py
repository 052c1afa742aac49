"""The page of a paper's table."""

from __future__ import annotations

import base64
import math
from pathlib import Path

from seepage.record import Column, write_atomically
from seepage.report.charts.intervals import Figure, IntervalChart, draw_intervals
from seepage.report.frame import render
from seepage.report.published.result import Row, Table
from seepage.report.published.terminal import OUTSIDE, legend, texts


def table_html(table: Table) -> str:
    """The whole table as one self-contained page; an unfinished one gives a page that says so."""
    header = table.log.header
    heads = [
        (column.name, ("paper", "ours", "difference") if table.compared(column) else ("ours",))
        for column in table.columns
    ]
    lines = [
        (
            row,
            [
                (text, text.startswith(OUTSIDE))
                for column in table.columns
                for text in texts(table, row, column)
            ],
        )
        for row in table.rows
    ]
    asked = {name: value for name, value in header.spec.items() if name != "layout"}
    return render(
        "table.html.j2",
        header=header,
        first=header.points[0],
        heads=heads,
        width=1 + sum(len(each) for _, each in heads),
        lines=lines,
        legend=legend(table),
        charts=[
            (column.name, chart) for column in table.columns if (chart := _chart(table, column)) is not None
        ],
        missing=table.missing,
        notes=table.notes,
        pictures=[
            (f"{row.group}: {row.label}", base64.b64encode(row.picture).decode())
            for row in table.rows
            if row.picture is not None
        ],
        spec={**asked, "points": {point.title: point.spec for point in header.points}},
    )


def _chart(table: Table, column: Column) -> IntervalChart | None:
    """The paper's figures and ours, where the paper has some."""
    if not table.compared(column):
        return None
    rows = [
        (f"{row.group}: {row.label}", _figures(row, column))
        for row in table.rows
        if column.name in row.figures
    ]
    return draw_intervals(rows, ["paper", "ours"], percent=False, what=f"{column.name}, paper and ours")


def _figures(row: Row, column: Column) -> list[Figure | None]:
    found = row.figures[column.name]
    paper = found.paper
    theirs = None if paper is None else Figure(value=paper, low=paper, high=paper, title=f"{paper:.3f}")
    ours = found.estimate(column.unit)
    if not math.isfinite(ours.value):
        return [theirs, None]
    known = ours.n > 1 and math.isfinite(ours.low) and math.isfinite(ours.high)
    low, high = (ours.low, ours.high) if known else (ours.value, ours.value)
    return [theirs, Figure(value=ours.value, low=low, high=high, title=f"{ours.value:.3f}")]


def write_table_html(table: Table, path: Path | None = None) -> Path:
    """Write the page into the run's folder, or to `path`; returns where it is."""
    target = table.log.folder.report_file if path is None else path
    write_atomically(target, table_html(table).encode())
    return target
