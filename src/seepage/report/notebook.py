"""An audit as the last line of a notebook's cell: verdict, pictures, table. It needs no script and no style
sheet, for notebooks take neither from what is not trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from seepage.core.errors import SpecError
from seepage.record import AttackSummary, AuditLog, summarise
from seepage.report.evidence.examples import example_rows
from seepage.report.frame import fragment
from seepage.report.front import build_front
from seepage.report.judgement import verdict
from seepage.report.table import build_table
from seepage.report.words import plural, printable

if TYPE_CHECKING:
    import pandas

COLOURS = {"high": "#a3222a", "some": "#7d5200"}
"""Of a verdict that is a finding; the others have the notebook's own."""


def notebook_html(log: AuditLog) -> str:
    """A fragment of HTML in which every text from the log is escaped."""
    summaries = summarise(log)
    ruling = verdict(log, summaries)
    return fragment(
        "notebook.html.j2",
        header=log.header,
        verdict=ruling,
        colour=COLOURS.get(ruling.level, "inherit"),
        front=build_front(log, summaries, ruling),
        table=build_table(log.header, summaries),
        missing=log.missing,
        folder=str(log.folder.path),
    )


def one_line(log: AuditLog) -> str:
    """For `repr`."""
    summaries = summarise(log)
    ruling = verdict(log, summaries)
    title = printable(log.header.title)
    short = title if len(title) <= 40 else f"{title[:39]}…"
    missing = f", {log.missing} cells missing" if log.missing else ""
    attacks = plural(len(summaries) - 1, "attack")
    return f"<audit '{short}': {ruling.badge}, {attacks}{missing}, in {log.folder.path}>"


def frame(log: AuditLog, of: Literal["attacks", "examples"] = "attacks") -> pandas.DataFrame:
    """One line for each attack, or for each private example and attack."""
    try:
        import pandas
    except ImportError:
        raise SpecError("to_frame() needs pandas, which is not installed: pip install pandas.") from None
    if of == "examples":
        columns, rows = example_rows(log)
        return pandas.DataFrame(rows, columns=columns)
    if of != "attacks":
        raise SpecError(f"to_frame() makes a line of 'attacks' or of 'examples', not of '{of}'.")
    return pandas.DataFrame([_attack(one) for one in summarise(log)])


def _attack(summary: AttackSummary) -> dict[str, Any]:
    known = {
        "attack": summary.attack.title,
        "status": summary.status,
        "examples": summary.examples,
        "exact_copies": summary.exact,
        "claims": summary.claims,
        "claims_right": summary.claims_right,
        "seconds": summary.seconds,
        "rounds": summary.rounds,
    }
    for name, estimate in summary.scores.items():
        known |= {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
        if name in summary.baseline:
            known[f"{name}_guess"] = summary.baseline[name].value
    return known
