"""A summary in Markdown, for a pull request."""

from __future__ import annotations

from collections.abc import Sequence

from seepage.report.evidence.findings import AttackFinding, Evidence
from seepage.report.table import build_table
from seepage.report.words import DASH, printable

STATES = {
    "leak": "leak shown",
    "not_shown": "not shown",
    "not_measured": "**not measured**",
    "not_applicable": "cannot work here",
}


def markdown_text(found: Evidence) -> str:
    """The verdict, the gate, and a table of attacks."""
    lines = [
        f"## seepage: {cell(found.log.header.title)}",
        "",
        f"**{found.verdict.badge}.** {cell(found.verdict.headline)}",
    ]
    lines += [""] + [f"- {cell(detail)}" for detail in found.verdict.details]
    lines += [f"- fail_on: {cell(said)}" for said in found.ruling.above]
    lines += [f"- Not measured: {cell(said)}" for said in found.ruling.not_measured]
    return "\n".join([*lines, "", *attack_table(found), ""])


def attack_table(found: Evidence) -> list[str]:
    """One line an attack, the guess beside each score."""
    summaries = [*([found.guess] if found.guess else []), *(one.summary for one in found.findings)]
    shown = build_table(found.log.header, summaries)
    states = {one.title: _result(one) for one in found.findings}
    unit = f", {shown.main.suffix}" if shown.main.suffix else ""
    heads = [
        "attack",
        "result",
        "exact",
        f"{shown.main.title}{unit} (95 % interval)",
        "best guess without any update",
    ]
    rows = []
    for row in shown.rows:
        score, guess = (f"{f.mean} ({f.interval})" if f.interval else f.mean for f in (row.main, row.guess))
        state = "the guess itself" if row.is_baseline else states.get(row.title, DASH)
        rows.append([row.title, state, row.exact, score, guess])
    return table(heads, rows)


def _result(one: AttackFinding) -> str:
    return STATES[one.state] + (f" ({one.in_part})" if one.in_part else "")


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """
    >>> table(["a", "b"], [["x|y", "1"]])
    ['| a | b |', '|---|---|', '| x\\\\|y | 1 |']
    """
    lines = [heads, *rows]
    shown = [f"| {' | '.join(cell(value) for value in line)} |" for line in lines]
    return [shown[0], "|" + "---|" * len(heads), *shown[1:]]


def cell(text: str) -> str:
    """On one line, with nothing in it that Markdown or HTML would act on."""
    plain = " ".join(printable(text).split())
    for sign in ("\\", "|", "<", "`", "[", "]"):
        plain = plain.replace(sign, f"\\{sign}")
    return plain
