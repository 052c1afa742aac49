"""Which columns of a table came out, those first that did so most often beyond the guess."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seepage.record import BASELINE, AttackSummary, ColumnRecord
from seepage.report.words import DASH, percent, plural

SHOWN, NAMED = 60, 5
"""Columns on the page, and in the terminal's one line; the log has all."""


@dataclass(frozen=True, kw_only=True)
class ColumnRow:
    """One column of the user's table, in words."""

    name: str
    kind: str
    right: str
    share: str
    guessed: str
    guessed_share: str
    beyond: str


@dataclass(frozen=True, kw_only=True)
class Columns:
    """What the page says about the columns under one attack."""

    rows: tuple[ColumnRow, ...]
    more: int
    exact: str
    """What follows for every column from the rows that came out whole; empty where none did."""


def build_columns(summary: AttackSummary) -> Columns | None:
    """None where the log has no columns: no table, an older log, or features of a layer."""
    if not summary.columns:
        return None
    rows = tuple(_row(column) for column in summary.columns[:SHOWN])
    return Columns(rows=rows, more=len(summary.columns) - len(rows), exact=_whole_rows(summary))


def _whole_rows(summary: AttackSummary) -> str:
    """A guess that is often right about a column hides that column's leak, but not in an exact row."""
    if not summary.exact:
        return ""
    return f"{summary.exact} of {plural(summary.examples, 'row')} came out exactly, every column included."


def columns_line(summaries: Sequence[AttackSummary]) -> str:
    """One sentence on the columns under the attack that got most of them; empty where there is none.

    >>> age = ColumnRecord(name="age", kind="integer", right=46, guessed=3, examples=48)
    >>> from seepage.record import AttackRef
    >>> columns_line([AttackSummary(
    ...     attack=AttackRef(name="tag"), status="done", scores={}, baseline={}, columns=(age,)
    ... )])
    'Columns that tag has right: age 46 of 48 (the baseline 3).'
    """
    attacks = [s for s in summaries if s.columns and s.attack.name != BASELINE]
    if not attacks:
        return ""
    best = max(attacks, key=lambda s: sum(column.excess for column in s.columns))
    beyond = [column for column in best.columns if column.excess > 0]
    if not beyond:
        return "No column came out more often than the baseline guesses it."
    named = [f"{c.name} {c.right} of {c.examples} (the baseline {c.guessed})" for c in beyond[:NAMED]]
    left = len(best.columns) - len(named)
    more = f"; {plural(left, 'more column')} in the report" if left else ""
    return f"Columns that {best.attack.name} has right: {', '.join(named)}{more}."


def _row(column: ColumnRecord) -> ColumnRow:
    points = round(100 * column.excess)
    return ColumnRow(
        name=column.name,
        kind=column.kind,
        right=f"{column.right} of {column.examples}",
        share=percent(column.right / column.examples) if column.examples else DASH,
        guessed=str(column.guessed),
        guessed_share=percent(column.guessed / column.examples) if column.examples else DASH,
        beyond=f"{points:+d}" if points else "0",
    )
