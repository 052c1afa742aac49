"""A comparison in the terminal: the answer, what differs, and one line an attack."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from seepage.report.compared.difference import Difference
from seepage.report.compared.result import Comparison, side_text
from seepage.report.words import DASH, printable

STYLES = {"more": "bold red", "less": "bold", "no difference shown": "bold", "not measured": "bold yellow"}


def print_comparison(found: Comparison, console: Console | None = None) -> None:
    """Texts from logs are never read as markup, nor do their control characters reach the terminal."""
    console = console or Console()
    for change in found.changes:
        console.print(Text(printable(change.said), style=STYLES[change.word]))
        if change.also:
            console.print(Text(printable(change.also)))
    for run in found.runs:
        console.print(Text(printable(f"{run.name}: {run.verdict.badge}. {run.verdict.headline}")))
    console.print()
    for title, rows in (
        ("What differs", found.changed),
        ("How it was measured differs too", found.circumstances),
    ):
        if rows:
            console.print(_settings(title, [run.name for run in found.runs], rows))
            console.print()
    if not found.changed:
        console.print("No setting of the deployment differs.\n", style="dim")
    console.print(_attacks(found))
    said = (
        "Leakage: the share of the best guess's error that the attack removes, with its 95 % interval. "
        "Difference: in points of 100, of the later run from the first."
    )
    console.print(Text(said, style="dim"))


def _settings(title: str, runs: list[str], rows: tuple[tuple[str, tuple[str, ...]], ...]) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(title, min_width=16)
    for name in runs:
        table.add_column(Text(printable(name)), min_width=8)
    for name, values in rows:
        table.add_row(Text(printable(name)), *(Text(printable(value)) for value in values))
    return table


def _attacks(found: Comparison) -> Table:
    """Names are never broken: a narrow terminal takes the width from the figures, which have spaces."""
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("Attack", no_wrap=True)
    for i, run in enumerate(found.runs):
        table.add_column(Text(printable(run.name)), justify="right")
        if i:
            table.add_column("Difference", justify="right")
    for line in found.lines:
        cells = []
        for i, side in enumerate(line.sides):
            cells.append(Text("\n".join(text for text in side_text(side) if text)))
            if i:
                cells.append(Text(difference_text(line.differences[i - 1])))
        table.add_row(Text(printable(line.name)), *cells)
    return table


def difference_text(one: Difference | None) -> str:
    """In points of 100.

    >>> difference_text(Difference(value=-0.5, low=-0.75, high=-0.25)), difference_text(None)
    ('-50 (-75 to -25)', '–')
    """
    if one is None or one.word == "not measured":
        return DASH
    return f"{_points(one.value)} ({_points(one.low)} to {_points(one.high)})"


def _points(share: float) -> str:
    """
    >>> _points(-0.5), _points(0.1234), _points(1e-13)
    ('-50', '+12.3', '0')
    """
    return f"{round(100 * share, 1):+g}" if round(100 * share, 1) else "0"
