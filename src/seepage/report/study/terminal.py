"""The study in a terminal: recommendation, table, limits."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from seepage.record import Estimate, epsilon_text
from seepage.report.study.advice import advise
from seepage.report.study.leakage import value_of
from seepage.report.study.result import DefenseRow, StudyResult
from seepage.report.words import DASH, broken, interval, percent, printable, widest_part


def print_study(result: StudyResult, console: Console | None = None) -> None:
    """Recommendation first; each attack's own figures are on the page. Texts are never read as markup."""
    console = console or Console()
    advice = advise(result)
    console.print(Text(printable(advice.headline), style="bold"))
    for detail in advice.details:
        console.print(Text(printable(detail)))
    console.print()
    console.print(_table(result, console.width))
    legend = "Below each share: its 95 % interval. * Pareto front."
    if any(row.bound_seen is not None for row in result.rows):
        legend += " At most: theory's bound for what the attacks saw (DP-SGD only)."
    console.print(Text(legend, style="dim"))
    for number, place in enumerate(advice.ranking, start=1):
        console.print(Text(printable(f"{number}. {place.row.point.title} {place.words}")))
    console.print()
    for caveat in advice.caveats:
        console.print(Text(printable(f"- {caveat}"), style="dim"))


def _table(result: StudyResult, width: int) -> Table:
    """Names break where a reader would break them, and no figure is cut: what does not fit is left to the
    page, the worst attack first."""
    several = len(result.rows[0].leaks) > 1
    bounded = any(row.bound_seen is not None for row in result.rows)
    proven = any(row.point.epsilon is not None for row in result.rows)
    heads = ["Accuracy", "Leakage", "Exact", *(["ε"] if proven else []), *(["At most"] if bounded else [])]
    titles = [printable(row.point.title) for row in result.rows]
    worst = [printable(row.worst) if value_of(row.leakage) else DASH for row in result.rows]
    figures = [_figures(row, proven=proven, bounded=bounded) for row in result.rows]
    columns = [[head, *(row[i].plain for row in figures)] for i, head in enumerate(heads)]
    taken = 2 + sum(max(map(_wide, column)) + 1 for column in columns)
    least, beside = widest_part(titles), widest_part(worst) + 1
    several = several and taken + least + beside <= width
    room = max(least, min(max(map(len, titles)), width - taken - (beside if several else 0)))
    left = max(beside - 1, width - taken - room - 1)
    table = Table(box=None, header_style="dim", padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("")
    table.add_column("Defense", no_wrap=True)
    for name in heads:
        table.add_column(name, justify="right", no_wrap=taken + least <= width)
    if several:
        table.add_column(broken("Worst attack", left), no_wrap=True)
    for row, title, attack, cells in zip(result.rows, titles, worst, figures, strict=True):
        last = [Text(broken(attack, left))] if several else []
        table.add_row(Text("*" if row.pareto else ""), Text(broken(title, room)), *cells, *last)
    return table


def _wide(text: str) -> int:
    return max(len(line) for line in text.splitlines() or [""])


def _with_range(estimate: Estimate | None) -> Text:
    """The share, and its interval below."""
    ends = interval(estimate)
    text = Text(percent(estimate))
    return text.append(f"\n{ends}", style="dim") if ends else text


def _figures(row: DefenseRow, *, proven: bool, bounded: bool) -> list[Text]:
    epsilon = row.point.epsilon
    shown = [_with_range(estimate) for estimate in (row.accuracy, row.leakage, row.exact)]
    if proven:
        shown.append(Text(DASH if epsilon is None else epsilon_text(epsilon)))
    return [*shown, *([Text(percent(row.bound_seen))] if bounded else [])]
