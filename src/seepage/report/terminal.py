"""The same summary for the terminal and for other programs."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from seepage.record import BASELINE, SCHEMA_VERSION, AuditLog, plain, summarise
from seepage.report.actions import read_actions
from seepage.report.columns import columns_line
from seepage.report.judgement import verdict
from seepage.report.plan import left_out
from seepage.report.sentences import server_s_view
from seepage.report.table import AttackRow, AttackTable, build_table
from seepage.report.words import broken, printable, sentence

WIDTH = 100
NAME_WIDTH = 20
WIDER = (48, 36, 26)
"""Widths of the names' column where there is room."""
ESSENTIALS = {
    "title",
    "created",
    "run_key",
    "seeds",
    "not_tried",
    "expected_seconds",
    "threat",
    "defenses",
    "input",
    "model_name",
    "model_parameters",
    "data_name",
    "data_source",
    "data_examples",
    "exact_tolerance",
    "device",
    "git_revision",
}
COLOURS = {
    "high": "bold red",
    "some": "bold yellow",
    "none_shown": "bold",
    "claimed": "bold yellow",
    "unknown": "bold",
}
"""Nothing is green: that no attack got anything is no good news, only no news."""


def print_summary(log: AuditLog, console: Console | None = None) -> None:
    """Verdict first, then one line an attack with its baseline beside it.

    Texts from the log are never read as markup, nor do their control characters reach the terminal.
    """
    console = console or Console()
    summaries = summarise(log)
    ruling = verdict(log, summaries)
    width = min(WIDTH, console.width)
    badge = Text(f"{ruling.badge}: ", style=COLOURS[ruling.level])
    console.print(badge + Text(printable(ruling.headline), style="bold"), width=width)
    for detail in ruling.details:
        console.print(Text(printable(detail)), width=width)
    held = (_taken(log), columns_line(summaries), log.header.input.fed) if log.header.data_examples else ()
    for said in held:
        if said:
            console.print(Text(printable(said)), width=width)
    for one in log.header.defenses:
        promise = f": {one.promise}" if one.promise else ""
        console.print(Text(printable(f"Defense: {one.title}, {one.guarantee}{promise}.")), width=width)
    console.print()
    table = build_table(log.header, summaries)
    # A narrow terminal gets fewer columns, not truncated ones. Measured without its width: with it, what
    # does not fit is measured as cut. Only names are broken, where a reader would, down to NAME_WIDTH.
    shapes = [(n, NAME_WIDTH) for n in (3, 2, 1, 0)]
    columns, name = next((s for s in shapes if _wide(table, s, console) <= width), (0, NAME_WIDTH))
    name = next((n for n in WIDER if _wide(table, (columns, n), console) <= width), name)
    console.print(_rich_table(table, columns, name), width=width)
    for told in _advice(log):
        console.print(Text(printable(told)), width=width)
    for line in server_s_view(log, log.cells_where(lambda cell: cell.attack.name != BASELINE)):
        console.print(Text(printable(line)), width=width)
    for row in table.rows:
        if row.reason:
            told = f"{row.title} ({row.status}): {sentence(row.reason)}"
            console.print(Text(printable(told)), width=width)
    for told in left_out(log.header):
        console.print(Text(printable(told)), width=width)


def _taken(log: AuditLog) -> str:
    """What a table was read from and which column was its label: a wrong one makes every figure another's."""
    header = log.header
    if header.input.modality != "tabular":
        return ""
    return f"Data: {header.data_examples:,} rows of {header.data_source}."


def _advice(log: AuditLog) -> list[str]:
    """What to do, as the page has it first: measured on this deployment, the best first."""
    found = read_actions(log)
    if found is None:
        return []
    lines = ["", found.none_listed or "What to do, measured on this deployment, the best first:"]
    for number, one in enumerate(found.listed, 1):
        lines += [f"{number}. {one.title}. {one.stops} {one.price}", f"   {one.command}"]
    if found.below:
        lines.append(f"Measured too, and ranked below: {'; '.join(found.below)}.")
    if found.listed and found.not_measured:
        lines.append(f"Not measured for want of time: {'; '.join(found.not_measured)}.")
    return [*lines, *([found.basis] if found.basis else []), ""]


def _wide(table: AttackTable, shape: tuple[int, int], console: Console) -> int:
    unbounded = console.options.update(max_width=1000)
    return console.measure(_rich_table(table, *shape), options=unbounded).maximum


def _rich_table(table: AttackTable, last_columns: int, widest_name: int) -> RichTable:
    unit = f", {table.main.suffix}" if table.main.suffix else ""
    rich = RichTable(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    rich.add_column("Attack", overflow="fold", no_wrap=True)
    figures = ("Exact", f"{table.main.title}{unit}\n(95 % interval)", "Baseline\n(95 % interval)")
    for title in figures if table.scored else ():
        rich.add_column(title, justify="right", no_wrap=True)
    if table.second:
        rich.add_column(table.second.title, justify="right", no_wrap=True)
    last = ("Claims\nright", "Labels", "Time") if table.scored else ("Claims", "Time")
    for title in last[:last_columns]:
        rich.add_column(title, justify="right", no_wrap=True)
    for row in table.rows:
        rich.add_row(*_cells(row, table, last_columns, widest_name))
    return rich


def _cells(row: AttackRow, table: AttackTable, last_columns: int, widest_name: int) -> list[Text]:
    name = Text(broken(printable(row.title), widest_name))
    status = "baseline" if row.is_baseline else "" if row.status_key == "done" else row.status
    if status:
        fits = len(name.plain.splitlines()[-1]) + len(status) + 3 <= widest_name
        name.append(f"{' ' if fits else chr(10)}({status})", style="dim")

    def figure(mean: str, interval: str, note: str = "") -> Text:
        text = Text(f"{mean}\n({interval})" if interval else mean)
        return text.append(f"\n{note}", style="dim") if note else text

    if not table.scored:
        return [name, *(Text(value) for value in (row.claims, row.time)[:last_columns])]
    second = [Text(row.second)] if table.second else []
    return [
        name,
        Text(row.exact),
        figure(row.main.mean, row.main.interval, row.main.note),
        figure(row.guess.mean, row.guess.interval),
        *second,
        *(Text(value) for value in (row.claims, row.labels, row.time)[:last_columns]),
    ]


def to_json(log: AuditLog) -> dict[str, Any]:
    """The machine form of the summary: plain JSON types only."""
    header, summaries = log.header, summarise(log)
    ruling = verdict(log, summaries)
    there = {cell.id for cell in log.cells}
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": {
            "outcome": ruling.outcome,
            "level": ruling.level,
            "badge": ruling.badge,
            "headline": ruling.headline,
            "details": list(ruling.details),
        },
        "attacks": [{"key": s.attack.key, **plain(s)} for s in summaries],
        "audit": plain(header.model_dump(include=ESSENTIALS)),
        "planned_cells": len(header.planned()),
        "missing_cells": [id_ for _, _, id_ in header.planned() if id_ not in there],
    }
