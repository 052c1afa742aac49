"""A regenerated table: our figures beside the paper's, with their difference and what departs from it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from seepage.log import Estimate

_OUTSIDE = "*"
"""Marks a difference beyond the column's margin."""
_WIDEST = 1000
"""Characters that a printed line may take."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One number over several seeds, and what the paper has in its place."""

    values: tuple[float, ...]
    """One for each seed."""
    paper: float | None = None

    @classmethod
    def over(cls, values: Sequence[float], paper: float | None = None) -> Figure:
        """
        >>> Figure.over([0.1, 0.3], paper=0.25).mean
        0.2
        """
        return cls(values=tuple(values), paper=paper)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def n(self) -> int:
        return len(self.values)

    def estimate(self, unit: str = "") -> Estimate:
        """The mean with its 95 % interval; every seed has a model and a batch of its own.

        >>> found = Figure.over([0.1, 0.3, 0.2]).estimate("share")
        >>> round(found.low, 3), round(found.high, 3)
        (0.0, 0.448)
        """
        return Estimate.of([[value] for value in self.values], unit)

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.paper is None else self.mean - self.paper

    def outside(self, margin: float | None) -> bool:
        """Further from the paper than `margin` allows. False where there is nothing to compare with.

        >>> Figure.over([0.30], paper=0.25).outside(0.05), Figure.over([0.31], paper=0.25).outside(0.05)
        (False, True)
        """
        if self.difference is None or margin is None:
            return False
        # 0.30 - 0.25 is a little more than 0.05 in binary: a rounding error is no departure
        return abs(self.difference) > margin and not math.isclose(abs(self.difference), margin)


@dataclass(frozen=True)
class Column:
    """One kind of figure. `margin`: how far from the paper still counts as agreement; None: not judged."""

    name: str
    meaning: str
    margin: float | None = None
    unit: str = ""
    """One of `seepage.log.RANGES`: no interval leaves its range."""


@dataclass(frozen=True)
class Row:
    """One line of the table; rows of one group (a dataset, mostly) are printed under its name."""

    group: str
    label: str
    figures: Mapping[str, Figure]


@dataclass(frozen=True, kw_only=True)
class Table:
    """What `seepage reproduce` prints."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    """What departs from the paper's set-up, and what explains a difference."""
    missing: tuple[str, ...] = ()
    """Parts that were not run, each with the reason."""

    def outside(self) -> list[tuple[Row, Column]]:
        """Every figure beyond its margin."""
        return [
            (row, column)
            for row in self.rows
            for column in self.columns
            if column.name in row.figures and row.figures[column.name].outside(column.margin)
        ]

    @property
    def measured(self) -> bool:
        """Whether there is any figure of ours in it."""
        return any(math.isfinite(figure.mean) for row in self.rows for figure in row.figures.values())

    def to_dict(self) -> dict[str, Any]:
        """For --json: plain numbers, lists and strings."""
        return {
            "name": self.name,
            "title": self.title,
            "columns": [{"name": c.name, "meaning": c.meaning, "margin": c.margin} for c in self.columns],
            "rows": [
                {
                    "group": row.group,
                    "label": row.label,
                    "figures": {
                        column.name: _figure_dict(row.figures[column.name], column)
                        for column in self.columns
                        if column.name in row.figures
                    },
                }
                for row in self.rows
            ],
            "notes": list(self.notes),
            "missing": list(self.missing),
        }

    def print(self, console: Console | None = None) -> None:
        """Paper, ours with interval, difference, aligned; then margins, what is missing, and the notes."""
        console = console or Console()
        console.print(Text(self.title, style="bold"))
        _print_whole(self._aligned(), console)
        for line in self._legend():
            console.print(line, markup=False, highlight=False)
        for heading, lines in (("Not run", self.missing), ("Notes", self.notes)):
            if lines:
                console.print(Text(heading, style="bold"))
            for line in lines:
                console.print(Padding(Text(f"- {line}"), (0, 0, 0, 1)))

    def _aligned(self) -> RichTable:
        table = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("", no_wrap=True)
        for column in self.columns:
            if self._compared(column):
                table.add_column(f"{column.name}\npaper", justify="right", no_wrap=True)
                table.add_column("\nours", justify="right", no_wrap=True)
                table.add_column("\ndifference", justify="right", no_wrap=True)
            else:
                table.add_column(f"{column.name}\nours", justify="right", no_wrap=True)
        group = None
        for row in self.rows:
            if row.group != group:
                group = row.group
                table.add_row(Text(group, style="bold"))
            cells = [cell for column in self.columns for cell in self._cells(row, column)]
            table.add_row(Text(f"  {row.label}"), *cells)
        return table

    def _compared(self, column: Column) -> bool:
        figures = [row.figures[column.name] for row in self.rows if column.name in row.figures]
        return any(figure.paper is not None for figure in figures)

    def _cells(self, row: Row, column: Column) -> list[Text]:
        figure = row.figures.get(column.name)
        compared = self._compared(column)
        if figure is None:
            return [Text("")] * (3 if compared else 1)
        ours = _with_interval(figure.estimate(column.unit))
        if not compared:
            return [ours]
        if figure.paper is None or figure.difference is None:
            return [Text("-"), ours, Text("-")]
        outside = figure.outside(column.margin)
        mark = f"{_OUTSIDE} " if outside else ""
        difference = Text(f"{mark}{figure.difference:+.3f}", style="bold yellow" if outside else "")
        return [Text(f"{figure.paper:.3f}"), ours, difference]

    def _legend(self) -> list[str]:
        lines = []
        for column in self.columns:
            judged = column.margin is not None and self._compared(column)
            margin = f" Margin ±{column.margin:g}." if judged else ""
            lines.append(f"{column.name}: {column.meaning}.{margin}")
        seeds = sorted({figure.n for row in self.rows for figure in row.figures.values()})
        lines.append(
            f"ours: mean (95 % interval) over {', '.join(map(str, seeds)) or 'no'} run(s); "
            f"difference: ours minus paper; {_OUTSIDE} marks {len(self.outside())} beyond the margin."
        )
        return lines


def _print_whole(table: RichTable, console: Console) -> None:
    """Print without cutting a number off: where the terminal is too narrow, it wraps the line itself."""
    width = console.width
    natural = console.measure(table, options=console.options.update(max_width=_WIDEST)).maximum
    console.width = max(width, natural)
    try:
        console.print(table)
    finally:
        console.width = width


def _with_interval(estimate: Estimate) -> Text:
    """A single run has none, nor has what could not be computed."""
    if estimate.n == 1 or math.isnan(estimate.low):
        return Text(f"{estimate.value:.3f}")
    return Text(f"{estimate.value:.3f} ({estimate.low:.3f} to {estimate.high:.3f})")


def _figure_dict(figure: Figure, column: Column) -> dict[str, Any]:
    return {
        **figure.estimate(column.unit).model_dump(mode="json"),
        "paper": figure.paper,
        "difference": figure.difference,
        "outside_margin": figure.outside(column.margin),
    }
