"""The command line: parses, calls, prints. Heavy imports happen inside the commands."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from seepage import options
from seepage.bundled import unfolded
from seepage.core.errors import SpecError
from seepage.endings import CODES, Code, ends_well, errors, say
from seepage.options import Json

if TYPE_CHECKING:
    from seepage.engine.spec import AuditSpec
    from seepage.record import AuditLog, RunLog
    from seepage.report.published import Table
    from seepage.report.study import StudyResult

app = typer.Typer(
    name="seepage",
    help=f"Measures what a federated-learning deployment gives away.\n\n{CODES}",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _say_version(asked: bool) -> None:
    if asked:
        from seepage import __version__

        print(f"seepage {__version__}")
        raise typer.Exit


@app.callback()
def _seepage(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version and end."),
    ] = False,
) -> None:
    pass


@app.command()
@ends_well
@unfolded
def audit(
    spec: Annotated[
        Path | None,
        typer.Argument(
            help="Audit file (TOML), or a folder of recorded exchanges. Without either: a demonstration, no "
            "download."
        ),
    ] = None,
    *,
    recorded: options.Recorded,
    flower: options.FlowerRun,
    run: options.Run,
    changes: options.Changes,
    no_advice: Annotated[
        bool,
        typer.Option(
            "--no-advice", help="Do not measure what could be changed; attacks get the whole budget."
        ),
    ] = False,
    formats: options.Formats = None,
    as_json: Json = False,
) -> None:
    """Play the protocol, attack it as the server would, and report what came out.

    A folder of recorded exchanges takes the place of the protocol: seepage audit recorded/ --model
    package.module:build --truth data. Without --truth there are claims and certificates, and nothing is
    scored (exit code 3). With --flower a Flower app is run first, as it is, and recorded into the folder.

    Exit code 0: measured, and below every fail_on threshold of the spec. 1: measured, and a threshold was
    reached. 2: could not run. 3: ran, but what fail_on asks for (without it: anything) was not measured.
    The same command resumes an interrupted run; what failed, or was computed by other code or other
    packages, is run again.

    Where a leak is shown, changes of the deployment are measured in a quarter of the budget, and the report
    says what to do (--no-advice skips it).
    """
    from seepage.engine.gate import rule
    from seepage.engine.grid import Grid
    from seepage.report import to_json, write_html
    from seepage.report.actions.measure import audit_and_advise
    from seepage.report.evidence import check_formats, write_formats

    check_formats(formats or ())
    run.settings()  # a slip of the pen is said before an app is run for minutes
    spec, said = flower.recorded(spec)
    if said:
        say(said)
    wanted = changes.made_to(_audited(spec, recorded, run))
    where = run.where()
    with _progress() as shown:
        typed = {"seeds": run.seeds, "budget": run.budget, "device": run.device, "with": changes.added}
        command = options.command("audit", spec, **typed)
        log = audit_and_advise(Grid.of_audit(wanted), advice=not no_advice, command=command, **where, **shown)
    report = write_html(log)
    written = write_formats(log, formats or (), about="" if spec is None else spec.as_posix())
    ruling = rule(log, wanted.fail_on)
    code = Code.ABOVE if ruling.above else Code.BELOW if ruling.passed else Code.NOT_MEASURED
    if as_json:
        gate = {"exceeded": ruling.above, "not_measured": ruling.not_measured, "exit_code": int(code)}
        print(json.dumps({**to_json(log), "report": str(report), **gate}, indent=2))
    else:
        _print_log(log, written=written)
        for found in ruling.above:
            errors.print(f"fail_on: {found}", style="red", markup=False)
    if code is Code.ABOVE:
        raise typer.Exit(code)
    if ruling.not_measured:
        _not_measured(ruling.not_measured)


def _audited(spec: Path | None, recorded: options.Recorded, run: options.Run) -> AuditSpec:
    """What a file, a folder of recorded exchanges or neither asks for."""
    from seepage.data import check_name
    from seepage.engine.spec import NO_TRUTH, parse_spec, read_spec
    from seepage.starter import DEMO

    given = run.settings()
    if spec is not None and spec.is_dir():
        wanted = parse_spec({**given, **recorded.keys(spec, seeds=run.seeds)})
    else:
        recorded.refuse_without(spec)
        wanted = parse_spec({**DEMO, **given}) if spec is None else read_spec(spec, **given)
    if spec is not None and wanted.data.name != NO_TRUTH:
        check_name(wanted.data.name, spec.parent)
    return wanted


@app.command("import")
@ends_well
def import_(
    update: Annotated[
        Path, typer.Argument(help="What a client sent: .npz, .safetensors, .pt, or an NVFlare DXO (.dxo).")
    ],
    sent: Annotated[Path, typer.Option(help="The weights that it had received, in a file of any such kind.")],
    into: Annotated[Path, typer.Option(help="Folder of recorded exchanges, new or to add to.")],
    kind: Annotated[
        Literal["gradient", "delta", "weights"] | None,
        typer.Option(help="gradient, delta (new weights minus received ones) or weights. A DXO says it."),
    ] = None,
    round_: Annotated[int, typer.Option("--round", min=0)] = 1,
    client: Annotated[int, typer.Option(min=0)] = 0,
    examples: Annotated[
        int | None, typer.Option(min=1, help="How many the client trained on, if known.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="package.module:function, for the names of arrays without names.")
    ] = None,
) -> None:
    """Make a recorded exchange of an update file, to be audited with seepage audit FOLDER."""
    from seepage.record.exchanges import import_update

    known = {} if examples is None else {"examples": examples}
    names = None if model is None else options.names_of(model)
    made = import_update(
        update, sent=sent, into=into, kind=kind, round=round_, client=client, names=names, **known
    )
    print(f"Wrote {made}. Audit it with: seepage audit {into} --model package.module:function")


@app.command()
@ends_well
def init(
    path: Annotated[Path, typer.Argument(help="File to write.")] = Path("audit.toml"),
    force: Annotated[bool, typer.Option(help="Overwrite an existing file.")] = False,
    study: Annotated[bool, typer.Option("--study", help="A file for seepage tradeoff instead.")] = False,
    example: Annotated[
        str | None, typer.Option(help="text or table: a small deployment that runs as it is.")
    ] = None,
) -> None:
    """Write a commented audit file to fill in; with --study one that compares defenses."""
    from seepage.starter import starting_files

    files = {path.parent / name: text for name, text in starting_files(path.name, study, example).items()}
    if (there := next((file for file in files if file.exists()), None)) is not None and not force:
        raise SpecError(f"'{there}' exists already: choose another name, or add --force to overwrite it.")
    for file, text in files.items():
        try:
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise SpecError(f"'{file}' cannot be written: {error.strerror}.") from None
    command = "tradeoff" if study else "audit"
    if example is None and sys.stdin.isatty() and sys.stdout.isatty():
        from seepage.asking import fill_in

        if fill_in(path, study=study):
            print(f"Wrote {path}, which was tried and runs: seepage {command} {path}")
            return
    what = "R" if example else "Fill in model and data, then r"
    print(f"Wrote {', '.join(map(str, files))}. {what}un: seepage {command} {path}")


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
def doctor(as_json: Json = False) -> None:
    """Check versions, extras, device and data folder, and whether an audit runs here.

    Exit code 0: a small audit ran and found what it must find. 2: it did not.
    """
    from seepage.doctoring import examine, print_examined

    found = examine()
    if as_json:
        print(json.dumps(found.to_json(), indent=2))
    else:
        print_examined(found)
    if not found.well:
        raise typer.Exit(Code.COULD_NOT_RUN)


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
        _show_study(run, out, as_json=as_json)
        return
    if run.header.kind == "table":
        _show_table(run, out, as_json=as_json)
        return
    log = run.point()
    path = write_html(log, out)
    written = _also_write(log, formats)
    if as_json:
        print(json.dumps({**to_json(log), "report": str(path)}, indent=2))
    else:
        _print_log(log, path, written=written)


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


@app.command()
@ends_well
@unfolded
def tradeoff(
    spec: Annotated[
        Path, typer.Argument(help="Study file (TOML): an audit file with defenses at several strengths.")
    ],
    *,
    run: options.Run,
    as_json: Json = False,
) -> None:
    """Measure what each defense stops and what it costs in accuracy, and recommend one.

    Exit code 0: every point was measured. 2: could not run. 3: ran, but something was not measured, for want
    of time (--budget) or because it failed: each is named.
    The same command resumes an interrupted study, cell by cell; what other code computed is run again.
    """
    from seepage.data import check_name
    from seepage.engine.run import run_grid
    from seepage.engine.study import read_study

    wanted = read_study(spec, **run.settings())
    check_name(wanted.data.name, spec.parent)
    where = run.where()
    with _progress() as shown:
        log = run_grid(wanted.grid(), **where, **shown)
    result = _show_study(log, None, as_json=as_json)
    if gaps := (*log.not_run(), *result.not_measured()):
        _not_measured(gaps)


@app.command()
@ends_well
def guard(
    weights: Annotated[Path, typer.Argument(help="Received weights: .safetensors, .pt or TorchScript.")],
    previous: Annotated[
        list[Path] | None,
        typer.Option(help="Weights of an earlier round; may be repeated, the oldest first."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model the weights belong to (name or package.module:function).")
    ] = None,
    sample: Annotated[
        str | None,
        typer.Option(
            help="Data (name or path) to run it on, public or your own; needs --model. With several "
            "--previous, losses are compared on it."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Client side: is this received model a trap?

    Exit code 0: clean. 1: suspicious or trap. 2: could not be checked, in whole or in part: a file that
    cannot be read, or layers that are stored flat, transposed, packed or under another name.
    """
    from seepage.core.types import Verdict
    from seepage.guardian import guard_file
    from seepage.record.refs import plain

    found = guard_file(weights, previous=previous, builder=model, sample=sample)
    print(json.dumps(plain(found.to_dict()), indent=2) if as_json else found.text())
    if found.verdict is Verdict.NOT_CHECKED:
        raise typer.Exit(Code.COULD_NOT_RUN)
    if found.verdict is not Verdict.CLEAN:
        raise typer.Exit(Code.ABOVE)


@app.command()
@ends_well
def gate(
    model: Annotated[str, typer.Argument(help="The model (name or package.module:function).")],
    data: Annotated[str, typer.Option(help="Your private batch (name or path). It stays here.")],
    weights: Annotated[Path | None, typer.Option(help="Received weights: .safetensors, .pt.")] = None,
    update: Annotated[
        Path | None, typer.Option(help="What is to be sent (tensors by parameter name); else the gradient.")
    ] = None,
    threshold: Annotated[float, typer.Option(help="Share of the batch that may be recovered.")] = 0.0,
    limit: Annotated[int, typer.Option(help="Examples of the data that are the batch, the first ones.")] = 64,
    quick: Annotated[bool, typer.Option("--quick", help="One pass alone, no attack is run.")] = False,
    as_json: Json = False,
) -> None:
    """Client side: which of my examples would this update give away, and what should I change?

    Exit code 0: measured, and no more than the threshold. 1: more. 2: could not run. 3: not measured.
    """
    from seepage.gating import gate_file
    from seepage.record.refs import plain

    found = gate_file(
        model, data=data, weights=weights, update=update, threshold=threshold, limit=limit, quick=quick
    )
    print(json.dumps(plain(found.to_dict()), indent=2) if as_json else found.text())
    codes = {"pass": Code.BELOW, "block": Code.ABOVE, "not measured": Code.NOT_MEASURED}
    raise typer.Exit(codes[found.answer])


@app.command()
@ends_well
@unfolded
def reproduce(
    name: Annotated[
        str, typer.Argument(help="A published table, e.g. boenisch2021/table2, or a TOML file like theirs.")
    ],
    *,
    run: options.Run,
    data: Annotated[
        Path | None, typer.Option(help="Folder with the datasets (default: $SEEPAGE_DATA).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Regenerate a published table and print ours beside the paper's.

    Exit code 0: every row whose data are there was measured. 2: could not run. 3: ran, but something was not
    measured, for want of time (--budget) or because it failed: each is named.
    The same command resumes an interrupted table, cell by cell; what other code computed is run again.
    """
    from seepage.engine.run import run_grid
    from seepage.tables.definition import find_table
    from seepage.tables.grid import table_grid

    if data is not None:
        if not data.is_dir():
            raise SpecError(f"'{data}' is not a folder: give the one that holds the datasets.")
        os.environ["SEEPAGE_DATA"] = str(data)
    given = run.settings()
    where = run.where()
    grid = table_grid(find_table(name), name=name, **given)
    with _progress() as shown:
        log = run_grid(grid, **where, **shown)
    if gaps := _show_table(log, None, as_json=as_json).not_measured():
        _not_measured(gaps)


def _not_measured(gaps: Iterable[str]) -> NoReturn:
    for gap in gaps:
        errors.print(f"not measured: {gap}", style="yellow", markup=False, highlight=False)
    raise typer.Exit(Code.NOT_MEASURED)


def _show_study(log: RunLog, out: Path | None, *, as_json: bool) -> StudyResult:
    from seepage.report.study import StudyResult, print_study, write_study_html

    result = StudyResult.of(log)
    _show(result, write_study_html(result, out), log, None if as_json else print_study)
    return result


def _show_table(log: RunLog, out: Path | None, *, as_json: bool) -> Table:
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


def _print_log(log: AuditLog, path: Path | None = None, *, written: Iterable[Path] = ()) -> None:
    from seepage.report import print_summary

    print_summary(log)
    print(f"Log:    {log.folder.path}")
    for file in written:
        print(f"Also:   {file}")
    print(f"Report: {path or log.folder.report_file}")


def _progress() -> AbstractContextManager[dict[str, Any]]:
    """What `run_grid` calls to show how far it is."""
    from seepage.watching import watched

    return watched(errors)


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line; a user's mistake is one sentence and exit code 2, never a traceback."""
    # Before torch is loaded: on a busy machine threads that wait by spinning take many times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    app(args=arguments)


if __name__ == "__main__":
    main()
