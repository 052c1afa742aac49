"""The page of a paper's table."""

from __future__ import annotations

import base64
from pathlib import Path

from seepage.record import write_atomically
from seepage.report.frame import render
from seepage.report.published.result import Table
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
        missing=table.missing,
        notes=table.notes,
        pictures=[
            (f"{row.group}: {row.label}", base64.b64encode(row.picture).decode())
            for row in table.rows
            if row.picture is not None
        ],
        spec={**asked, "points": {point.title: point.spec for point in header.points}},
    )


def write_table_html(table: Table, path: Path | None = None) -> Path:
    """Write the page into the run's folder, or to `path`; returns where it is."""
    target = table.log.folder.report_file if path is None else path
    write_atomically(target, table_html(table).encode())
    return target
