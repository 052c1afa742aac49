"""The command line: parses, calls, prints. Heavy imports happen inside the commands."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from seepage.endings import CODES, Code, ends_well, errors
from seepage.errors import SpecError

if TYPE_CHECKING:
    from seepage.log import AuditLog

app = typer.Typer(
    name="seepage",
    help=f"Measures what a federated-learning deployment gives away.\n\n{CODES}",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Start anew: what the folder holds of an earlier run is removed.")
]
Json = Annotated[bool, typer.Option("--json", help="Print machine-readable JSON instead of tables.")]


@app.command()
@ends_well
def audit(
    spec: Annotated[
        Path | None, typer.Argument(help="Audit file (TOML). Without one: a demonstration, no download.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; the default names it after the spec.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or auto; replaces the spec's.")] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Time for the whole audit, e.g. 60s or 5m (default with attacks = auto: 3m). auto "
            "leaves out what does not fit; attacks that are named all run, and searches share what is left."
        ),
    ] = None,
    fresh: Fresh = False,
    as_json: Json = False,
) -> None:
    """Play the protocol, attack it as the server would, and report what came out.

    Exit code 0: measured, and below every fail_on threshold of the spec. 1: measured, and a threshold was
    reached. 2: could not run. 3: ran, but what fail_on asks for (without it: anything) was not measured.
    The same command resumes an interrupted run; what failed, or was computed by other code or other
    packages, is run again.
    """
    from seepage.auditor import parse_spec, read_spec, rule, run_audit, seconds
    from seepage.report import plan_text, to_json, write_html
    from seepage.starter import DEMO
    from seepage.workloads.data import check_name

    wanted = parse_spec(DEMO) if spec is None else read_spec(spec)
    if spec is not None:
        check_name(wanted.data.name, spec.parent)
    if device is not None:
        wanted = wanted.model_copy(update={"device": device})
    if budget is not None:
        try:
            wanted = wanted.model_copy(update={"budget": seconds(budget)})
        except ValueError as error:
            raise SpecError(f"--budget {error}.") from None
    with _progress() as (on_cell, on_step):
        log = run_audit(
            wanted,
            out=_folder(out),
            on_plan=lambda header: errors.print(plan_text(header), markup=False, highlight=False),
            on_cell=on_cell,
            on_step=on_step,
            on_note=_note,
            fresh=fresh,
        )
    report = write_html(log)
    ruling = rule(log, wanted.fail_on)
    code = Code.ABOVE if ruling.above else Code.BELOW if ruling.passed else Code.NOT_MEASURED
    if as_json:
        gate = {"exceeded": ruling.above, "not_measured": ruling.not_measured, "exit_code": int(code)}
        print(json.dumps({**to_json(log), "report": str(report), **gate}, indent=2))
    else:
        _print_log(log)
        for found in ruling.above:
            errors.print(f"fail_on: {found}", style="red", markup=False)
    if code is Code.ABOVE:
        raise typer.Exit(code)
    if ruling.not_measured:
        _not_measured(ruling.not_measured)


@app.command()
@ends_well
def init(
    path: Annotated[Path, typer.Argument(help="File to write.")] = Path("audit.toml"),
    force: Annotated[bool, typer.Option(help="Overwrite an existing file.")] = False,
    study: Annotated[bool, typer.Option("--study", help="A file for seepage tradeoff instead.")] = False,
) -> None:
    """Write a commented audit file to fill in; with --study one that compares defenses."""
    from seepage.starter import STUDY_TEMPLATE, TEMPLATE

    if path.exists() and not force:
        raise SpecError(f"'{path}' exists already: choose another name, or add --force to overwrite it.")
    try:
        text = (STUDY_TEMPLATE if study else TEMPLATE).format(name=path.name)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SpecError(f"'{path}' cannot be written: {error.strerror}.") from None
    command = "tradeoff" if study else "audit"
    print(f"Wrote {path}. Fill in model and data, then run: seepage {command} {path}")


@app.command("list")
@ends_well
def list_(as_json: Json = False) -> None:
    """Show every attack, defense, detector, metric, model, dataset and paper table."""
    from seepage.catalogue import catalogue, print_catalogue

    if as_json:
        print(json.dumps(catalogue(), indent=2))
    else:
        print_catalogue()


@app.command()
@ends_well
def report(
    folder: Annotated[Path, typer.Argument(help="Folder of a run, finished or not.")],
    out: Annotated[Path | None, typer.Option(help="Where to write the HTML; default: in the folder.")] = None,
    as_json: Json = False,
) -> None:
    """Rebuild the report from a run's log. Needs neither the model nor the data."""
    from seepage.log import AuditLog
    from seepage.report import to_json, write_html

    log = AuditLog.read(folder)
    path = write_html(log, out)
    if as_json:
        print(json.dumps({**to_json(log), "report": str(path)}, indent=2))
    else:
        _print_log(log, path)


@app.command()
@ends_well
def tradeoff(
    spec: Annotated[
        Path, typer.Argument(help="Study file (TOML): an audit file with defenses at several strengths.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder of the study; the default names it after the spec.")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Cells run at the same time, one thread each (default: all CPUs)"),
    ] = None,
    fresh: Fresh = False,
    as_json: Json = False,
) -> None:
    """Measure what each defense stops and what it costs in accuracy, and recommend one.

    Exit code 0: every point was measured. 2: could not run. 3: ran, but some point was not measured.
    The same command resumes an interrupted study, cell by cell; what other code computed is run again.
    """
    from seepage.tradeoff import print_tradeoff, read_tradeoff, run_tradeoff, write_tradeoff_html
    from seepage.workloads.data import check_name

    wanted = read_tradeoff(spec)
    check_name(wanted.data.name, spec.parent)
    with _progress() as (on_cell, _):
        result = run_tradeoff(
            wanted, out=_folder(out), jobs=jobs, on_cell=on_cell, on_note=_note, fresh=fresh
        )
    page = write_tradeoff_html(result)
    if as_json:
        print(json.dumps({**result.to_json(), "report": str(page)}, indent=2))
    else:
        print_tradeoff(result)
        print(f"Study:  {result.folder.path}")
        print(f"Report: {page}")
    if gaps := result.not_measured():
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
    from seepage.guardian import guard_file
    from seepage.types import Verdict

    found = guard_file(weights, previous=previous, builder=model, sample=sample)
    print(json.dumps(found.to_dict(), indent=2) if as_json else found.text())
    if found.verdict is Verdict.NOT_CHECKED:
        raise typer.Exit(Code.COULD_NOT_RUN)
    if found.verdict is not Verdict.CLEAN:
        raise typer.Exit(Code.ABOVE)


@app.command()
@ends_well
def reproduce(
    name: Annotated[str, typer.Argument(help="A published table, e.g. boenisch2021/table2.")],
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Runs to average; the default is the paper's.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder with the datasets (default: $SEEPAGE_DATA).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where finished rows are kept, to resume from.")] = None,
    fresh: Fresh = False,
    as_json: Json = False,
) -> None:
    """Regenerate a published table and print ours beside the paper's.

    Exit code 0: there are figures of ours. 2: could not run. 3: ran, but nothing was measured.
    """
    from seepage.papers import reproduce as regenerate

    if data is not None:
        if not data.is_dir():
            raise SpecError(f"'{data}' is not a folder: give the one that holds the datasets.")
        os.environ["SEEPAGE_DATA"] = str(data)
    table = regenerate(name, seeds=seeds, out=_folder(out), quiet=as_json, fresh=fresh)
    print(json.dumps(table.to_dict(), indent=2)) if as_json else table.print()
    if not table.measured:
        _not_measured(table.missing or (f"{name} has no figure of ours.",))


def _folder(out: Path | None) -> Path | None:
    if out is not None and out.exists() and not out.is_dir():
        raise SpecError(f"--out names a file, '{out}': give a folder, new or of the same run.")
    return out


def _not_measured(gaps: Iterable[str]) -> NoReturn:
    for gap in gaps:
        errors.print(f"not measured: {gap}", style="yellow", markup=False, highlight=False)
    raise typer.Exit(Code.NOT_MEASURED)


def _note(text: str) -> None:
    errors.print(f"seepage: {text}", markup=False, highlight=False)


def _print_log(log: AuditLog, path: Path | None = None) -> None:
    from seepage.report import print_summary

    print_summary(log)
    print(f"Log:    {log.folder.path}")
    print(f"Report: {path or log.folder.report_file}")


@contextmanager
def _progress() -> Iterator[tuple[Callable[[str, int, int], None], Callable[[Any], None]]]:
    """A bar over cells and one over the steps of a search, on stderr so that --json stays clean."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeLeft(),
    )
    with Progress(*columns, console=errors) as bar:
        cells = bar.add_task("Preparing", total=None)
        search = bar.add_task("", total=None, visible=False)

        def on_cell(cell: str, number: int, total: int) -> None:
            bar.update(cells, description=cell or "Done", completed=number, total=total)
            bar.update(search, visible=False)

        def on_step(step: Any) -> None:
            text = f"  objective {step.objective:.3g}"
            bar.update(search, description=text, completed=step.step, total=step.steps, visible=True)

        yield on_cell, on_step


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line; a user's mistake is one sentence and exit code 2, never a traceback."""
    # Before torch is loaded: on a busy machine threads that wait by spinning take many times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    app(args=arguments)


if __name__ == "__main__":
    main()
