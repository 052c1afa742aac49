"""What the cells of a run are going to take: one of each kind is rehearsed, and the others are reckoned."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from seepage.core.amounts import about
from seepage.engine.auto import searches
from seepage.engine.cell import run_cell
from seepage.engine.executors.pays import makespan
from seepage.engine.grid import Job
from seepage.engine.points import Points
from seepage.engine.rehearsal import Rehearsal, updates_of
from seepage.engine.training import train_cell
from seepage.engine.tuning import COST
from seepage.record import ADAPTIVE, BASELINE, TRAINING, RunHeader

LONGEST = 10.0
"""Seconds that all rehearsals of a run may take together, or a tenth of its budget."""
_WORTH = 4
"""Cells of a kind: for fewer a rehearsal is not worth its time, unless it is that of a search."""
_ROUNDS = 3
"""Of a training that is tried, after its first: enough to time one."""
_LONG = 10.0
"""Seconds: what takes less is not announced."""


def with_forecast(points: Points, header: RunHeader, todo: Sequence[Job], *, longest: float) -> RunHeader:
    """The header with what was not known before: seconds of a cell, by point and attack."""
    found: dict[int, dict[str, float]] = {}
    kinds = _kinds(points, header, todo)
    until, each = time.monotonic() + longest, longest / max(1, len(kinds))
    for kind in kinds:
        if time.monotonic() < until:
            job, seconds = _rehearsed(points, kind, each)
            of_an_example = seconds / examples(points, job.point)
            for one in kind:
                seconds = of_an_example * examples(points, one.point)
                found.setdefault(one.point, {})[one.attack.key] = float(f"{seconds:.3g}")
    if not found:
        return header
    return header.model_copy(
        update={
            "points": tuple(
                point.model_copy(
                    update={"expected_seconds": {**point.expected_seconds, **found.get(number, {})}}
                )
                for number, point in enumerate(header.points)
            )
        }
    )


def expected(header: RunHeader, todo: Iterable[Job]) -> list[float] | None:
    """Seconds of each job; None where some are not known. Those of a baseline do not count."""
    found = [_known(header, job) for job in todo]
    known = [seconds for seconds in found if seconds is not None]
    return known if len(known) == len(found) else None


def in_words(header: RunHeader, todo: Sequence[Job], workers: int) -> str:
    """One sentence on how long the jobs take together; empty where that is not long or not known at all."""
    known = [seconds for job in todo if (seconds := _known(header, job)) is not None]
    total = makespan(known, workers) if known else 0.0
    if total < _LONG:
        return ""
    least = "" if len(known) == len(todo) else "at least "
    return f"{least}about {about(total)} for {len(todo)} cells on {workers} process{'es' * (workers > 1)}."


def examples(points: Points, number: int) -> int:
    """All that the clients of one point train on."""
    protocol = points[number].spec.protocol
    return protocol.batch_size * protocol.played * protocol.rounds


def _known(header: RunHeader, job: Job) -> float | None:
    known = header.points[job.point].expected_seconds.get(job.attack.key)
    return 0.0 if known is None and job.attack.name == BASELINE else known


def _kinds(points: Points, header: RunHeader, todo: Sequence[Job]) -> list[list[Job]]:
    """Jobs with the same attack on the same model and data, where they are worth a rehearsal.

    What adapts to a defense costs about as much as what does not. Trainings of different points are of
    different kinds, for some defenses cost more than the training.
    """
    found: dict[tuple[object, str], list[Job]] = {}
    trainings = sum(job.attack.name == TRAINING for job in todo)
    for job in todo:
        trains = job.attack.name == TRAINING
        if job.attack.key not in header.points[job.point].expected_seconds:
            kind = (job.point if trains else points.base(job.point), job.attack.plain.key)
            found.setdefault(kind, []).append(job)
    return [
        jobs
        for (_, attack), jobs in found.items()
        if (trainings if attack == TRAINING else len(jobs)) >= _WORTH or searches(jobs[0].attack.plain.name)
    ]


def _rehearsed(points: Points, kind: Sequence[Job], limit: float) -> tuple[Job, float]:
    """One of them, and its seconds: the one with most examples, for a rehearsal knows how to try fewer."""
    job = max(kind, key=lambda one: (examples(points, one.point), one.attack.name != ADAPTIVE))
    if job.attack.name == TRAINING:
        return job, _training(points, job.point)
    prepared, attack = points[job.point], job.attack.plain
    rehearsal = Rehearsal(prepared, run_cell, limit=limit)
    if "budget" in attack.params:
        return job, float(attack.params["budget"]) * updates_of(prepared)
    if searches(attack.name):
        return job, rehearsal.search(attack, around=0.0).seconds
    return job, rehearsal.whole(attack).seconds


def _training(points: Points, number: int) -> float:
    """By a few of its rounds."""
    training, prepared = points.training(number), points.trained(number)
    taken = []
    for rounds in (1, 1 + _ROUNDS):
        begun = time.perf_counter()
        train_cell(prepared, max(points.grid.points[number].training_seeds) + 1, rounds)
        taken.append(time.perf_counter() - begun)
    one = max(0.0, taken[1] - taken[0]) / _ROUNDS
    trainings = COST if training.tuned else 1.0
    return taken[0] + trainings * (training.rounds - 1) * one
