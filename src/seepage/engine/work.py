"""What a worker does: one cell of a grid, wherever it runs. It writes nothing that belongs to the record.

Whoever calls it gives it one thread: sums in another order round differently, and the same cell must give the
same bytes everywhere. Only `Cell.cost` may differ.
"""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from seepage.core.checkpoint import keeping
from seepage.core.errors import SeepageError, in_words, out_of_memory
from seepage.core.types import INPUT_SPACE, Modality
from seepage.engine.cell import run_cell
from seepage.engine.grid import Job
from seepage.engine.live import watching
from seepage.engine.partial import PartialStates
from seepage.engine.points import Points
from seepage.engine.prepared import Prepared
from seepage.engine.scoring import Scored
from seepage.engine.shared import Shared
from seepage.engine.training import train_cell
from seepage.engine.unscored import Unscored
from seepage.record import TRAINING, Cell, RunFolder, cell_id, origin_key
from seepage.record.pictures import picture_grid

_KEEP_EVERY = 30.0
"""Seconds between two kept states of a search."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What comes back from a worker; the process that started it writes it down."""

    cell: Cell
    arrays: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    picture: bytes | None = None
    traceback: str = ""
    """Of what nobody foresaw."""
    seconds: float = 0.0


def work(points: Points, job: Job, *, scratch: RunFolder | None = None) -> Result:
    """Run one cell. Whatever an attack or a model does fails this cell and not the run.

    scratch: where half-done searches are kept, for workers that see the run's folder.
    """
    started = time.perf_counter()
    point, prepared = points.grid.points[job.point], points.attacked_by(job.point, job.attack)
    if prepared.run_key != job.run_key:
        raise SeepageError(
            "a worker process has another model or other data than the process that started it: leave the "
            "files alone while this runs, and seed what the model's function draws by itself."
        )
    made = points.made_by(job.point, job.attack, job.seed)
    try:
        if point.training is not None and job.attack.name == TRAINING:
            wanted = points.training(job.point)
            cell = train_cell(points.trained(job.point), job.seed, wanted.rounds, wanted)
            result = Result(cell=cell)
        else:
            folder = None if scratch is None else scratch.at(point.key)
            key = f"{prepared.run_key} {origin_key(made)}"
            shared = points.shared.of(job.point, prepared, job.seed)
            result = _attacked(prepared, job, shared, folder, key)
    except Exception as error:
        result = _failed(job, error)
    cell = result.cell.model_copy(update={"run_key": prepared.run_key, "made_by": made})
    return replace(result, cell=cell, seconds=time.perf_counter() - started)


def _attacked(prepared: Prepared, job: Job, shared: Shared, folder: RunFolder | None, key: str) -> Result:
    """From where an interrupted run left the searches of this cell."""
    id_ = cell_id(job.attack, job.seed)
    strip = None if folder is None else folder.picture_file(f"{id_}.live")
    with watching(strip, prepared.dataset.spec):
        if folder is None:
            return _result(prepared, *run_cell(prepared, job.attack, job.seed, shared))
        with keeping(PartialStates(folder, id_), every=_KEEP_EVERY, key=key) as states:
            cell, scored = run_cell(prepared, job.attack, job.seed, shared)
    if cell.cost is not None and states.seconds_resumed:
        seconds = cell.cost.seconds + states.seconds_resumed
        cell = cell.model_copy(update={"cost": cell.cost.model_copy(update={"seconds": seconds})})
    return _result(prepared, cell, scored)


def _result(prepared: Prepared, cell: Cell, scored: Scored | Unscored | None) -> Result:
    """With its tensors and its picture."""
    if scored is None:
        return Result(cell=cell)
    if isinstance(scored, Unscored):
        return Result(cell=cell, arrays={"claims": scored.values.numpy()} if scored.distinct else {})
    arrays = {"truth": scored.truth.numpy(), "reconstruction": scored.matched.numpy()}
    if len(scored.rows) < len(cell.examples):
        arrays["rows"] = scored.rows.numpy()
    spec, picture = prepared.dataset.spec, None
    if cell.space == INPUT_SPACE and spec.modality is Modality.IMAGE:
        recovered = [cell.examples[row].recovered for row in scored.rows.tolist()]
        picture = picture_grid(arrays["truth"], arrays["reconstruction"], recovered, spec.value_range)
    return Result(cell=cell, arrays=arrays, picture=picture)


def _failed(job: Job, error: Exception) -> Result:
    if out_of_memory(error):
        reason, told = "there was not enough memory: lower protocol.batch_size or protocol.clients.", ""
    else:
        reason, told = in_words(error), "".join(traceback.format_exception(error))
    return Result(cell=Cell(attack=job.attack, seed=job.seed, status="failed", reason=reason), traceback=told)
