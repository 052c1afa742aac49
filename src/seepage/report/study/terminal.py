"""The study in a terminal: recommendation, table, limits."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from seepage.record import Estimate, epsilon_text
from seepage.report.study.advice import advise
from seepage.report.study.leakage import value_of
from seepage.report.study.result import DefenseRow, StudyResult
from seepage.report.words import DASH, interval, percent, printable


def print_study(result: StudyResult, console: Console | None = None) -> None:
    """Recommendation first; each attack's own figures are on the page. Texts are never read as markup."""
    console = console or Console()
    advice = advise(result)
    console.print(Text(printable(advice.headline), style="bold"))
    for detail in advice.details:
        console.print(Text(printable(detail)))
    console.print()
    table = Table(box=None, header_style="dim", padding=(0, 1), pad_edge=False)
    table.add_column("")
    table.add_column("Defense", overflow="fold")
    for name in ("Accuracy", "Leakage", "Exact", "ε", "At most"):
        table.add_column(name, justify="right")
    several = len(result.rows[0].leaks) > 1
    if several:
        table.add_column("Worst attack", overflow="fold")
    for row in result.rows:
        worst = printable(row.worst) if value_of(row.leakage) else DASH
        table.add_row(*_cells(row), *([Text(worst)] if several else []))
    console.print(table)
    legend = (
        "Below each share: its 95 % interval. * Pareto front. At most: theory's bound for what the attacks "
        "saw (DP-SGD only)."
    )
    console.print(Text(legend, style="dim"))
    for number, place in enumerate(advice.ranking, start=1):
        console.print(Text(printable(f"{number}. {place.row.point.title} {place.words}")))
    console.print()
    for caveat in advice.caveats:
        console.print(Text(printable(f"- {caveat}"), style="dim"))


def _with_range(estimate: Estimate | None) -> Text:
    """The share, and its interval below."""
    ends = interval(estimate)
    text = Text(percent(estimate))
    return text.append(f"\n{ends}", style="dim") if ends else text


def _cells(row: DefenseRow) -> list[Text]:
    epsilon = row.point.epsilon
    return [
        Text("*" if row.pareto else ""),
        Text(printable(row.point.title)),
        *(_with_range(estimate) for estimate in (row.accuracy, row.leakage, row.exact)),
        Text(DASH if epsilon is None else epsilon_text(epsilon)),
        Text(percent(row.bound_seen)),
    ]
