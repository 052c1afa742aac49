"""One line for each private example and attack, for a spreadsheet."""

from __future__ import annotations

import csv
import io

from seepage.record import AuditLog, Cell, Example
from seepage.report.evidence.findings import Evidence


def csv_text(found: Evidence) -> str:
    """Every score of every example, with the guess's beside it; pictures and texts stay in the folder."""
    columns, rows = example_rows(found.log)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_safe(value) for value in row] for row in rows)
    return text.getvalue()


def example_rows(log: AuditLog) -> tuple[list[str], list[list[object]]]:
    """Names of the columns, and a row for each private example and attack; None: no such score."""
    pairs = [(cell, example) for cell in log.cells for example in cell.examples]
    names = sorted({name for _, example in pairs for name in example.scores})
    columns = ["attack", "seed", "space", "example", "client", "label", "recovered", "claimed"]
    columns += [column for name in names for column in (name, f"{name}_guess")]
    return columns, [_row(cell, example, names) for cell, example in pairs]


def _row(cell: Cell, example: Example, names: list[str]) -> list[object]:
    own = [cell.attack.title, cell.seed, cell.space, example.index, example.client, example.label]
    flags = [int(example.recovered), int(example.claimed)]
    scores = [source.get(name) for name in names for source in (example.scores, example.baseline)]
    return [*own, *flags, *scores]


def _safe(value: object) -> object:
    """A spreadsheet takes a text that begins so for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value
