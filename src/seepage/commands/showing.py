"""Commands that show what is there: report, compare, list, explain, export."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seepage import options
from seepage.commands.app import app
from seepage.core.errors import SpecError
from seepage.endings import Code, ends_well
from seepage.options import Json

if TYPE_CHECKING:
    from seepage.record import AuditLog, RunLog
    from seepage.report.published import Table
    from seepage.report.study import StudyResult


@app.command()
@ends_well
def report(
    folder: Annotated[Path, typer.Argument(help="Folder of a run, finished or not.")],
    out: Annotated[Path | None, typer.Option(help="Where to write the HTML; default: in the folder.")] = None,
    formats: options.Formats = None,
    as_json: Json = False,
) -> None:
    """Rebuild the report from a run's log. Needs neither the model nor the data."""
    from seepage.record import RunLog
    from seepage.report import to_json, write_html

    run = RunLog.read(folder)
    if formats and run.header.kind != "audit":
        raise SpecError(f"--format is for audits, and '{folder}' holds a {run.header.kind}: use --json.")
    if run.header.kind == "study":
        show_study(run, out, as_json=as_json)
        return
    if run.header.kind == "table":
        show_table(run, out, as_json=as_json)
        return
    log = run.point()
    path = write_html(log, out)
    written = _also_write(log, formats)
    if as_json:
        print(json.dumps({**to_json(log), "report": str(path)}, indent=2))
    else:
        print_log(log, path, written=written)


@app.command()
@ends_well
def compare(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders of audits; the others are compared with the first.")
    ],
    names: Annotated[
        list[str] | None, typer.Option("--name", help="What to call a run; once for each, in their order.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where to write the HTML.")] = Path("comparison.html"),
    as_json: Json = False,
) -> None:
    """Show several audits side by side: before and after a change.

    Exit code 0: every run could be compared with the first. 2: they must not be compared, or could not be
    read. 3: compared, but something that leaked at first was not measured later.
    """
    from seepage.record import AuditLog
    from seepage.report.compared import compare_logs, print_comparison, write_comparison_html

    found = compare_logs([AuditLog.read(folder) for folder in folders], names or ())
    page = write_comparison_html(found, out)
    if as_json:
        print(json.dumps({**found.to_json(), "report": str(page)}, indent=2))
    else:
        print_comparison(found)
        print(f"Report: {page}")
    if not found.told:
        raise typer.Exit(Code.NOT_MEASURED)


@app.command("list")
@ends_well
def list_(
    kind: Annotated[
        str | None,
        typer.Argument(help="attacks, threats, defenses, detectors, metrics, models, data or tables."),
    ] = None,
    words: Annotated[list[str] | None, typer.Argument(help="Only lines with all of these words.")] = None,
    as_json: Json = False,
) -> None:
    """Show everything that can be named, of installed packages too: seepage list attacks fishing."""
    from seepage.catalogue import catalogue, print_catalogue

    if as_json:
        print(json.dumps(catalogue(kind, words or ()), indent=2))
    else:
        print_catalogue(kind, words or ())


@app.command()
@ends_well
def explain(
    name: Annotated[str, typer.Argument(help="Of an attack, a defense, a metric, a threat model, ...")],
    as_json: Json = False,
) -> None:
    """Say what something does and needs, what its settings are, its papers and where its figures are."""
    from seepage.explaining import explain, print_explained

    found = explain(name)
    if as_json:
        print(json.dumps([one.to_json() for one in found], indent=2))
        return
    for one in found:
        print_explained(one)


@app.command()
@ends_well
def export(
    folder: Annotated[Path, typer.Argument(help="Folder of an audit.")],
    to: Annotated[str, typer.Option(help="mlflow (where MLFLOW_TRACKING_URI says) or wandb.")],
    project: Annotated[str, typer.Option(help="The experiment or project there.")] = "seepage",
    with_report: Annotated[
        bool, typer.Option("--report", help="Send the page too: it shows private examples.")
    ] = False,
) -> None:
    """Send an audit's figures, settings and verdict to an experiment tracker."""
    from seepage.integrations.trackers import export as send
    from seepage.record import AuditLog

    place = send(AuditLog.read(folder), to, project=project, report=with_report)
    print(f"Sent to {to}: {place}")


def show_study(log: RunLog, out: Path | None, *, as_json: bool) -> StudyResult:
    from seepage.report.study import StudyResult, print_study, write_study_html

    result = StudyResult.of(log)
    _show(result, write_study_html(result, out), log, None if as_json else print_study)
    return result


def show_table(log: RunLog, out: Path | None, *, as_json: bool) -> Table:
    from seepage.report.published import Table, print_table, write_table_html

    table = Table.of(log)
    _show(table, write_table_html(table, out), log, None if as_json else print_table)
    return table


def _show(result: Any, page: Path, log: RunLog, shown: Callable[[Any], None] | None) -> None:
    """As JSON where there is no way to show it."""
    if shown is None:
        print(json.dumps({**result.to_json(), "report": str(page)}, indent=2))
        return
    shown(result)
    print(f"Log:    {log.folder.path}")
    print(f"Report: {page}")


def _also_write(log: AuditLog, formats: list[str] | None) -> list[Path]:
    """In the formats that were asked for; judging a gate needs torch, showing a log does not."""
    if not formats:
        return []
    from seepage.report.evidence import check_formats, write_formats

    check_formats(formats)
    return write_formats(log, formats)


def print_log(log: AuditLog, path: Path | None = None, *, written: Iterable[Path] = ()) -> None:
    from seepage.report import print_summary

    print_summary(log)
    print(f"Log:    {log.folder.path}")
    for file in written:
        print(f"Also:   {file}")
    print(f"Report: {path or log.folder.report_file}")
