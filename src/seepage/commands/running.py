"""Commands that run a grid: audit, tradeoff, reproduce."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from seepage import options
from seepage.bundled import unfolded
from seepage.commands.app import app
from seepage.commands.showing import print_log, show_study, show_table
from seepage.core.errors import SpecError
from seepage.endings import Code, ends_well, errors, say
from seepage.options import Json

if TYPE_CHECKING:
    from seepage.engine.spec import AuditSpec


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
        print_log(log, written=written)
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
        wanted = read_spec(spec or DEMO, **given)
    if spec is not None and wanted.data.name != NO_TRUTH:
        check_name(wanted.data.name, spec.parent)
    return wanted


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
    result = show_study(log, None, as_json=as_json)
    if gaps := (*log.not_run(), *result.not_measured()):
        _not_measured(gaps)


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
    if gaps := show_table(log, None, as_json=as_json).not_measured():
        _not_measured(gaps)


def _not_measured(gaps: Iterable[str]) -> NoReturn:
    for gap in gaps:
        errors.print(f"not measured: {gap}", style="yellow", markup=False, highlight=False)
    raise typer.Exit(Code.NOT_MEASURED)


def _progress() -> AbstractContextManager[dict[str, Any]]:
    """What `run_grid` calls to show how far it is."""
    from seepage.watching import watched

    return watched(errors)
