"""Running a study: cells in parallel processes, each written to disk as soon as it is done."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from datetime import UTC, datetime
from pathlib import Path

import torch

from seepage.errors import SeepageError, SpecError
from seepage.tradeoff.record import StudyFolder, StudyHeader
from seepage.tradeoff.result import TradeoffResult
from seepage.tradeoff.spec import TradeoffSpec
from seepage.tradeoff.study import Job, Study, unfinished

OnCell = Callable[[str, int, int], None]
"""Called with a cell's name, how many are finished and how many there are; at the end with an empty name."""


def run_tradeoff(
    spec: TradeoffSpec,
    *,
    out: Path | str | None = None,
    jobs: int | None = None,
    on_cell: OnCell | None = None,
    on_note: Callable[[str], None] | None = None,
    fresh: bool = False,
) -> TradeoffResult:
    """Run what is not already in the study's folder and return the result. The same call resumes.

    jobs: worker processes, each with one thread; None: one for every CPU. 1: no further process. Scripts
    that ask for more need the usual `if __name__ == "__main__":`, for workers are started anew.
    on_note: is told in one sentence which finished cells are run again, and why.
    fresh: start anew, whatever is in the folder.
    """
    if jobs is not None and jobs < 1:
        raise SpecError(f"jobs must be at least 1, not {jobs}.")
    study = Study(spec)
    study.check()
    folder = StudyFolder((Path(out) if out is not None else default_folder(study)).resolve())
    folder.claim(fresh=fresh)
    folder.open(make_header(study))
    study.open_points(folder)
    todo, note = unfinished(study, folder)
    if on_note is not None and note:
        on_note(note)
    total = len(study.jobs())
    workers = min(jobs or os.cpu_count() or 1, len(todo))
    finished = (
        _in_this_process(study, folder, todo) if workers <= 1 else _in_pool(study, folder, todo, workers)
    )
    if on_cell is not None:
        on_cell(study.name(todo[0]) if todo else "", total - len(todo), total)
    for number, job in enumerate(finished, start=total - len(todo) + 1):
        if on_cell is not None:
            on_cell(study.name(job) if number < total else "", number, total)
    return TradeoffResult.read(folder.path)


def default_folder(study: Study) -> Path:
    """The same spec, model and data lead to the same folder, so that the same command resumes."""
    words = re.findall(r"[a-z0-9]+", title(study.spec).lower())
    return Path("seepage-runs") / f"tradeoff-{'-'.join(words)[:40].strip('-')}-{study.run_key[:8]}"


def title(spec: TradeoffSpec) -> str:
    return spec.title or f"{spec.model.name} on {spec.data.name}"


def make_header(study: Study) -> StudyHeader:
    spec = study.spec
    return StudyHeader(
        title=title(spec),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        spec=spec.model_dump(mode="json"),
        run_key=study.run_key,
        training_keys=study.training_keys(),
        points=study.records(),
        seeds=spec.seeds,
        training_seeds=spec.training_seeds,
        model_name=study.base.model_name,
        data_name=study.base.dataset.name,
        num_classes=study.base.dataset.spec.num_classes,
        prior_success=spec.prior_success,
    )


def _in_this_process(study: Study, folder: StudyFolder, todo: Sequence[Job]) -> Iterator[Job]:
    for job in todo:
        study.run(job, folder)
        yield job


def _in_pool(study: Study, folder: StudyFolder, todo: Sequence[Job], workers: int) -> Iterator[Job]:
    # spawn: a forked child would inherit torch's threads in whatever state they are.
    pool = ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(study.spec, folder, study.run_key),
    )
    try:
        futures = {pool.submit(_work, job): job for job in todo}
        for future in as_completed(futures):
            future.result()
            yield futures[future]
    except BrokenProcessPool:
        raise SeepageError(
            "a worker process was ended from outside, most often for want of memory: run the same command "
            "again with fewer --jobs; what is finished is kept."
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


_worker: list[tuple[Study, StudyFolder, str]] = []
"""A worker process holds one study for its whole life; empty in the process that the user started."""


def _start_worker(spec: TradeoffSpec, folder: StudyFolder, run_key: str) -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends a worker at once: what it wrote is whole
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _worker.append((Study(spec), folder, run_key))


def _end_with_parent() -> None:
    """A parent that was killed cannot tell its workers to stop, and they would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(job: Job) -> None:
    study, folder, run_key = _worker[0]
    if study.run_key != run_key:
        raise SeepageError(
            "a worker process has another model or other data than the process that started it: leave the "
            "files alone while a study runs, and seed what the model's function draws by itself."
        )
    study.run(job, folder)
