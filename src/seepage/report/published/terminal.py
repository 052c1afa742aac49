"""A table in the terminal: paper, ours with interval, difference, aligned; then what it means."""

from __future__ import annotations

import math

from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from seepage.record import Column, Estimate
from seepage.report.published.result import Row, Table

OUTSIDE = "*"
"""Marks a difference beyond the column's margin."""
_WIDEST = 1000
"""Characters that a printed line may take."""


def print_table(table: Table, console: Console | None = None) -> None:
    """The figures, then margins, what is missing, and the notes."""
    console = console or Console()
    console.print(Text(table.title, style="bold"))
    _print_whole(_aligned(table), console)
    for line in legend(table):
        console.print(line, markup=False, highlight=False)
    for heading, lines in (("Not run", table.missing), ("Notes", table.notes)):
        if lines:
            console.print(Text(heading, style="bold"))
        for line in lines:
            console.print(Padding(Text(f"- {line}"), (0, 0, 0, 1)))


def legend(table: Table) -> list[str]:
    """What each column is, and how to read a figure."""
    lines = []
    for column in table.columns:
        judged = column.margin is not None and table.compared(column)
        margin = f" Margin ±{column.margin:g}." if judged else ""
        lines.append(f"{column.name}: {column.meaning}.{margin}")
    seeds = sorted({figure.n for row in table.rows for figure in row.figures.values()})
    runs = f"{' or '.join(map(str, seeds)) or 'no'} run{'' if seeds == [1] else 's'}"
    beside = f"; difference: ours minus paper; {OUTSIDE} marks {len(table.outside())} beyond the margin"
    compared = any(table.compared(column) for column in table.columns)
    return [*lines, f"ours: mean (95 % interval) over {runs}{beside if compared else ''}."]


def texts(table: Table, row: Row, column: Column) -> list[str]:
    """Paper, ours and difference; ours alone where the paper has nothing in this column."""
    figure, compared = row.figures.get(column.name), table.compared(column)
    if figure is None:
        return [""] * (3 if compared else 1)
    ours = _with_interval(figure.estimate(column.unit))
    if not compared:
        return [ours]
    if figure.paper is None or figure.difference is None:
        return ["-", ours, "-"]
    mark = f"{OUTSIDE} " if figure.outside(column.margin) else ""
    return [f"{figure.paper:.3f}", ours, f"{mark}{figure.difference:+.3f}"]


def _aligned(table: Table) -> RichTable:
    shown = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    shown.add_column("", no_wrap=True)
    for column in table.columns:
        for head in ("paper", "ours", "difference") if table.compared(column) else ("ours",):
            first = head == "paper" or not table.compared(column)
            name = column.name if first else ""
            shown.add_column(f"{name}\n{head}", justify="right", no_wrap=True)
    group = None
    for row in table.rows:
        if row.group != group:
            group = row.group
            shown.add_row(Text(group, style="bold"))
        cells = [text for column in table.columns for text in texts(table, row, column)]
        styled = [Text(text, style="bold yellow" if text.startswith(OUTSIDE) else "") for text in cells]
        shown.add_row(Text(f"  {row.label}"), *styled)
    return shown


def _print_whole(table: RichTable, console: Console) -> None:
    """Print without cutting a number off: where the terminal is too narrow, it wraps the line itself."""
    width = console.width
    natural = console.measure(table, options=console.options.update(max_width=_WIDEST)).maximum
    console.width = max(width, natural)
    try:
        console.print(table)
    finally:
        console.width = width


def _with_interval(estimate: Estimate) -> str:
    """A single run has none, nor has what could not be computed."""
    if estimate.n == 1 or math.isnan(estimate.low):
        return f"{estimate.value:.3f}"
    return f"{estimate.value:.3f} ({estimate.low:.3f} to {estimate.high:.3f})"
