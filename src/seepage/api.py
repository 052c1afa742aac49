"""Five lines of Python: `seepage.audit`, `study` and `reproduce` run a grid and return what came out."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from seepage.core import amounts
from seepage.core.errors import SpecError
from seepage.core.registry import unknown
from seepage.engine.executors import Engine
from seepage.engine.given import take
from seepage.engine.grid import Grid
from seepage.engine.protocol_spec import ProtocolSpec
from seepage.engine.run import OnCell, OnPlan, run_grid
from seepage.engine.spec import NO_TRUTH, parse_spec
from seepage.engine.study import parse_study
from seepage.record import AuditLog, RunHeader, RunLog, summarise
from seepage.report import plan_text, print_summary, to_json, write_html
from seepage.report.actions.measure import audit_and_advise
from seepage.report.compared import Comparison, compare_logs
from seepage.report.notebook import frame, notebook_html, one_line
from seepage.report.published import Table
from seepage.report.study import StudyResult
from seepage.tables.definition import find_table
from seepage.tables.grid import table_grid
from seepage.watching import watched

if TYPE_CHECKING:
    import pandas


class AuditResult(AuditLog):
    """The log of a run, with the reports that can be made of it."""

    def summary(self) -> None:
        """Print the verdict and a table, every score beside its baseline."""
        print_summary(self)

    def to_html(self, path: Path | str | None = None) -> Path:
        """Write the report and return its path (in the run's folder unless another is given)."""
        return write_html(self, None if path is None else Path(path))

    def to_json(self) -> dict[str, Any]:
        """Verdict and figures for machines."""
        return to_json(self)

    def to_frame(self, of: Literal["attacks", "examples"] = "attacks") -> pandas.DataFrame:
        """A pandas DataFrame with one line for each attack, or for each private example and attack."""
        return frame(self, of)

    def _repr_html_(self) -> str:
        return notebook_html(self)

    def __repr__(self) -> str:
        return one_line(self)

    def scores(self, attack: str) -> dict[str, float]:
        """Mean of every metric of one attack."""
        found = {s.attack.name: s for s in summarise(self)}
        if attack not in found:
            raise SpecError(unknown("attack in this log", attack, found))
        return {name: estimate.value for name, estimate in found[attack].scores.items()}


def open_log(path: Path | str) -> AuditResult | StudyResult | Table:
    """Read the folder of a run of any kind, finished or not."""
    log = RunLog.read(path)
    if log.header.kind == "table":
        return Table.of(log)
    return StudyResult.of(log) if log.header.kind == "study" else _audited(log)


def compare(*runs: Path | str | AuditLog, names: Sequence[str] = ()) -> Comparison:
    """Audits side by side, the others compared with the first: before and after a change.

    runs: folders of audits, or what `audit` returned. names: what to call them; by default their folders.

    >>> compare("before")
    Traceback (most recent call last):
    ...
    seepage.core.errors.SpecError: a comparison needs two runs or more: give their folders, the first to \
compare with.
    """
    if len(runs) < 2:
        return compare_logs([], names)
    return compare_logs([r if isinstance(r, AuditLog) else AuditLog.read(r) for r in runs], names)


def audit(
    *,
    model: Any,
    data: Any = None,
    recorded: Path | str | Mapping[str, Any] | None = None,
    attacks: Any = "auto",
    budget: str | float | None = None,
    data_options: Mapping[str, Any] | None = None,
    out: Path | str | None = None,
    engine: Engine = "auto",
    jobs: int | None = None,
    scheduler: str | None = None,
    fresh: bool = False,
    advice: bool = False,
    progress: bool = False,
    on_plan: OnPlan | None = None,
    on_cell: OnCell | None = None,
    **settings: Any,
) -> AuditResult:
    """Audit a model on data, in simulation or as it was recorded, and return the log.

    model: an nn.Module, a function that builds one, a registry name or "package.module:function".
    data: (x, y), a torch dataset, a registry name, a path or "package.module:function".
    recorded: a folder of recorded exchanges (docs/recorded.md), or a table of folder, rounds, clients and
    input. `data` is then the truth behind them: all of one client's examples, what a function of `client`
    returns, or the data set that `rows` of the recording are of. Without it nothing is scored.
    attacks: "auto" for all that fit the model, the data and the threat model; or names, tables with their
    settings, or attacks of your own: objects, classes. So are defenses, metrics and the threat model.
    budget: time for the whole audit, in seconds or as "5m"; auto takes up to 3 minutes unless told otherwise.
    data_options: mean, std, value_range, num_classes, modality, or what the dataset's loader takes.
    out: the run's folder. What it holds of the same audit by the same code is not run again, unless `fresh`.
    engine: where cells run: "auto", "here", "pool", "ray", "dask", or any `concurrent.futures.Executor`.
    jobs: how many at the same time. scheduler: the address of a Dask scheduler.
    advice: where a leak is shown, measure in a quarter of the budget what could be changed, for the report.
    progress: show bars while it runs, in a terminal and in a notebook; a line now and then elsewhere.
    on_plan: called before the attacks start, with the log's header; by default what will run, and for how
    long, is printed on stderr. on_cell: called with the next cell, how many are done and how many there are.
    settings: any key of an audit file, or of its [protocol] table: batch_size, clients, aggregation,
    algorithm, lr, threat, seeds, defenses, device, ...

    >>> import tempfile, torch
    >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 50), torch.nn.ReLU(),
    ...                           torch.nn.Linear(50, 10))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = audit(model=net, data="digits", attacks=["analytic_extraction"], batch_size=1, seeds=[0],
    ...                 out=folder, on_plan=lambda header: None)
    ...     log.scores("analytic_extraction")["exact"]
    1.0
    """
    if data is None and recorded is None:
        raise SpecError("seepage.audit() needs data, or a folder of recorded exchanges (recorded=).")
    settings = {"attacks": attacks, "budget": budget, **settings}
    if recorded is not None:
        settings["recorded"] = recorded if isinstance(recorded, Mapping) else str(recorded)
    values, given = take(_values(model, data, data_options, settings))
    spec = parse_spec(values, source="seepage.audit()")
    grid = Grid.of_audit(spec, **_objects(model, data), given=given)
    where = _where(out, engine, jobs, scheduler, fresh)
    with watched() if progress else nullcontext(_spoken()) as shown:
        log = audit_and_advise(grid, advice=advice, **where, **_told(shown, on_plan, on_cell))
    return AuditResult(log.folder, log.header, log.cells)


def study(
    *,
    model: Any,
    data: Any,
    defenses: Sequence[Any],
    budget: str | float | None = None,
    data_options: Mapping[str, Any] | None = None,
    out: Path | str | None = None,
    engine: Engine = "auto",
    jobs: int | None = None,
    scheduler: str | None = None,
    fresh: bool = False,
    on_plan: OnPlan | None = None,
    on_cell: OnCell | None = None,
    **settings: Any,
) -> StudyResult:
    """Measure what each defense stops and what it costs in accuracy, and return the result.

    defenses: names, or tables with their settings; a list as a setting makes one point of each value.
    budget: no cell is begun after this time; the same call goes on with what was not run.
    settings: any key of a study file: those of an audit, `attacks` among them, and
    `training`, a table of rounds, clients, examples, test_examples and seeds. The others are `audit`'s.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = study(model="mlp", data="digits", defenses=[{"name": "clipping", "norm": [1.0, 0.1]}],
    ...                   attacks=["analytic_extraction"], batch_size=1, seeds=1, adaptive=False, out=folder,
    ...                   training={"rounds": 1, "clients": 1, "examples": 1}, on_plan=lambda header: None)
    ...     [row.point.title for row in found.rows]
    ['none', 'clipping(norm=1.0)', 'clipping(norm=0.1)']
    """
    settings = {"defenses": defenses, "budget": budget, **settings}
    values, given = take(_values(model, data, data_options, settings))
    spec = parse_study(values, source="seepage.study()")
    grid = spec.grid(**_objects(model, data), given=given)
    where = _where(out, engine, jobs, scheduler, fresh)
    log = run_grid(grid, **where, **_told(_spoken(), on_plan, on_cell))
    return StudyResult.of(log)


def reproduce(
    name: str,
    *,
    seeds: int | Sequence[int] | None = None,
    budget: str | float | None = None,
    device: str = "auto",
    out: Path | str | None = None,
    engine: Engine = "auto",
    jobs: int | None = None,
    scheduler: str | None = None,
    fresh: bool = False,
    on_plan: OnPlan | None = None,
    on_cell: OnCell | None = None,
) -> Table:
    """Regenerate a published table, ours beside the paper's.

    name: as `seepage list tables` has it, "package.module:thing", or the path of a TOML file.
    seeds: how many runs to average, or which; None: as many as the paper's. The others are `study`'s.

    >>> reproduce("boenisch2021/table7")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    seepage.core.errors.SpecError: unknown table 'boenisch2021/table7': did you mean ...
    """
    table = find_table(name)
    try:
        wanted = None if seeds is None else amounts.seeds(seeds)
        limit = None if budget is None else amounts.seconds(budget)
    except ValueError as error:
        raise SpecError(f"seepage.reproduce(): {error}.") from None
    grid = table_grid(table, name=name, seeds=wanted, budget=limit, device=device)
    where = _where(out, engine, jobs, scheduler, fresh)
    log = run_grid(grid, **where, **_told(_spoken(), on_plan, on_cell))
    return Table.of(log)


def _audited(log: RunLog) -> AuditResult:
    point = log.point()
    return AuditResult(point.folder, point.header, point.cells)


def _say(note: str) -> None:
    print(f"seepage: {note}", file=sys.stderr)


def _say_plan(header: RunHeader) -> None:
    print(plan_text(header), file=sys.stderr)


def _spoken() -> dict[str, Any]:
    return {"on_note": _say, "on_plan": _say_plan}


def _told(shown: dict[str, Any], on_plan: OnPlan | None, on_cell: OnCell | None) -> dict[str, Any]:
    """What is called while a grid runs: the caller's own where there is one, else what is shown."""
    return {**shown, **({"on_plan": on_plan} if on_plan else {}), **({"on_cell": on_cell} if on_cell else {})}


def _where(
    out: Path | str | None, engine: Engine, jobs: int | None, scheduler: str | None, fresh: bool
) -> dict[str, Any]:
    return {"out": out, "engine": engine, "jobs": jobs, "scheduler": scheduler, "fresh": fresh}


def _values(
    model: Any, data: Any, data_options: Mapping[str, Any] | None, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """As a file has them: keys of the protocol in their table, objects by what they are called."""
    protocol = {name: value for name, value in settings.items() if name in ProtocolSpec.model_fields}
    others = {name: value for name, value in settings.items() if name not in protocol and name != "protocol"}
    return {
        "model": model if isinstance(model, str | Mapping) else {"name": _name(model)},
        "data": {"name": _data_name(data), **(data_options or {})},
        "protocol": {**settings.get("protocol", {}), **protocol},
        **others,
    }


def _data_name(data: Any) -> str:
    if data is None:
        return NO_TRUTH
    return data if isinstance(data, str) else _name(data)


def _objects(model: Any, data: Any) -> dict[str, Any]:
    return {
        "model": None if isinstance(model, str | Mapping) else model,
        "data": None if isinstance(data, str) else data,
    }


def _name(given: Any) -> str:
    """What to call an object that was passed in Python."""
    if isinstance(given, tuple | list):
        return "arrays"
    return str(getattr(given, "__name__", type(given).__name__))
