"""Running a grid: what is not finished already, cell by cell, each written as soon as it is done."""

from __future__ import annotations

import itertools
import math
import re
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from seepage.core.errors import SeepageError
from seepage.core.progress import Progress, listening
from seepage.engine.auto import line_up, line_up_study
from seepage.engine.cell import run_cell
from seepage.engine.executors import Died, Engine, Work, choose, finished, open_executor, width
from seepage.engine.executors.work import one_thread
from seepage.engine.forecast import LONGEST, expected, in_words, with_forecast
from seepage.engine.grid import Grid, Job
from seepage.engine.header import grid_key, make_header
from seepage.engine.origin import again_in_words, kept
from seepage.engine.partial import PartialStates
from seepage.engine.points import Points
from seepage.engine.spec import AuditSpec
from seepage.engine.work import Result, work
from seepage.record import TRAINING, AuditLog, Cell, Header, RunFolder, RunHeader, RunLog, write_atomically

OnPlan = Callable[[RunHeader], None]
"""Called once before the first cell, with what will run, what will not, and what it is expected to take."""
OnCell = Callable[[str, int, int], None]
"""Called with the name of the next cell, how many are finished and how many there are; at the end with an
empty name."""
OnStep = Callable[[Progress], None]
"""Called at every step of a search that runs in this process."""
OnNote = Callable[[str], None]
_ON_THIS_MACHINE = ("auto", "here", "pool")
"""Engines whose workers see the run's folder, where half-done searches are kept."""


def run_grid(
    grid: Grid,
    *,
    out: Path | str | None = None,
    engine: Engine = "auto",
    jobs: int | None = None,
    scheduler: str | None = None,
    fresh: bool = False,
    reserved: float = 0.0,
    on_plan: OnPlan | None = None,
    on_cell: OnCell | None = None,
    on_step: OnStep | None = None,
    on_note: OnNote | None = None,
) -> RunLog:
    """Run what is not already in the run's folder and return its log. Ctrl-C leaves what is finished.

    Cells that failed are no results: they are run again.

    engine: where cells run: "auto" (a pool of processes where that pays), "here", "pool", "ray", "dask", or
    any `concurrent.futures.Executor`. Each cell has one thread and is the same everywhere.
    jobs: cells at the same time. scheduler: the address of a Dask scheduler.
    fresh: start anew, whatever is in the folder.
    reserved: the share of an audit's budget that its attacks leave to what comes after it.
    on_note: is told in one sentence which finished cells are run again, and why.
    """
    choose(engine, jobs=jobs, scheduler=scheduler)
    until = math.inf if grid.budget is None else time.monotonic() + grid.budget
    with one_thread():
        points = Points(grid)
        points.check()
        folder = RunFolder(Path(out) if out is not None else default_folder(points))
        folder.claim(fresh=fresh)
        if grid.kind == "audit":
            points.settle(0, line_up(points[0], folder, run_cell, reserved=reserved))
        elif grid.kind == "study":
            line_up_study(points, folder, run_cell)
        header = folder.open(make_header(points))
        todo, note = unfinished(points, header, folder)
        longest = LONGEST if grid.budget is None else min(LONGEST, grid.budget / 10)
        header = folder.rewrite(with_forecast(points, header, todo, longest=longest))
        if on_plan is not None:
            on_plan(header)
    if grid.advice and grid.budget is not None:
        until = time.monotonic() + grid.budget
    if on_note is not None and note:
        on_note(note)
    folder_here = RunFolder(folder.path.resolve()) if engine in _ON_THIS_MACHINE else None
    cells = Work(
        key=header.run_key, build=partial(Points, grid), run=partial(work, scratch=folder_here), here=points
    )
    done = header.cells - len(todo)

    def begin(number: int) -> None:
        if on_cell is not None:
            name = todo[number].title(grid.points) if number < len(todo) else ""
            on_cell(name, done + number, header.cells)

    begin(0)
    with (
        open_executor(engine, jobs=jobs, scheduler=scheduler, expected=expected(header, todo)) as executor,
        listening(on_step) if on_step is not None else nullcontext(),
    ):
        if on_note is not None and (said := in_words(header, todo, width(executor) or 1)):
            on_note(said)
        numbers = itertools.count(1)
        # `enumerate` would hold the last result beside the next: of many examples it is large
        for job, result in finished(executor, cells, todo, until=until, on_note=on_note):
            write(folder, header.points[job.point], job, result)
            del result
            begin(next(numbers))
    points.shared.drop()
    log = RunLog.of(folder, header)
    if on_note is not None and grid.budget is not None and log.missing:
        on_note(
            f"the budget of {grid.budget:g} s is used up: {log.missing} of {header.cells} cells were not "
            "run; the same command goes on with them."
        )
    return log


def run_audit(spec: AuditSpec, *, model: Any = None, data: Any = None, **settings: Any) -> AuditLog:
    """The grid of one point that an audit is; `settings` are those of `run_grid`."""
    return run_grid(Grid.of_audit(spec, model=model, data=data), **settings).point()


def unfinished(points: Points, header: RunHeader, folder: RunFolder) -> tuple[list[Job], str]:
    """What is left to do, point by point, and a sentence on what of it was done before."""
    todo, reasons = [], []
    for number, point in enumerate(header.points):
        for attack, seed, id_ in point.planned():
            wanted = points.made_by(number, attack, seed)
            found, why = kept(folder.at(point.key), id_, point.run_key, wanted)
            reasons.append(why)
            if found is None:
                todo.append(Job(point=number, attack=attack, seed=seed, run_key=point.run_key))
    if points.grid.advice:
        todo.sort(key=lambda job: job.attack.name == TRAINING)
    return todo, again_in_words(reasons)


def write(folder: RunFolder, point: Header, job: Job, result: Result | Died) -> None:
    """Into the record. The traceback of a failed cell is kept beside it until a later run has a result."""
    folder = folder.at(point.key)
    if isinstance(result, Died):
        cell = Cell(attack=job.attack, seed=job.seed, status="failed", reason=result.reason)
        result = Result(cell=cell.model_copy(update={"run_key": point.run_key}))
    elif result.cell.key != point.cell_keys[result.cell.id]:
        raise SeepageError(
            "a worker computes with other code or other packages than the process that started it: install "
            "the same everywhere, start the workers anew, and leave the files alone while this runs."
        )
    cell = result.cell
    told = folder.cell_file(cell.id, ".traceback.txt")
    if result.traceback:
        write_atomically(told, result.traceback.encode())
        place = told.relative_to(folder.path)
        cell = cell.model_copy(update={"reason": f"{cell.reason} The traceback is in {place}."})
    else:
        told.unlink(missing_ok=True)
    folder.write_cell(cell, result.arrays, result.picture)
    PartialStates(folder, cell.id).remove()


def default_folder(points: Points) -> Path:
    """The same spec, model and data lead to the same folder, so that the same command resumes."""
    words = "-".join(re.findall(r"[a-z0-9]+", points.grid.title.lower()))[:40].strip("-")
    kind = "" if points.grid.kind == "audit" else f"{points.grid.kind}-"
    return Path("seepage-runs") / f"{kind}{words}-{grid_key(points)[:8]}"
