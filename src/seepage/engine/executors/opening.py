"""Choosing an engine by its name, and opening it once what it has to do is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec

from seepage.core.errors import SpecError
from seepage.core.registry import lookup
from seepage.engine.executors.pays import WhenItPays, worthwhile

Engine = str | Executor
"""A name of `ENGINES`, or any executor of the user's own."""
Expected = Sequence[float] | None
"""Seconds of every job, where they were estimated."""
Opener = Callable[[Expected], Executor | None]


def _auto(jobs: int | None, scheduler: str | None) -> Opener:
    from seepage.engine.executors.pool import Pool

    _no_scheduler("auto", scheduler)
    if jobs is not None:
        return _pool(jobs, None) if jobs > 1 else _here(None, None)

    def opened(expected: Expected) -> Executor | None:
        cores = _cores()
        if expected is None:
            return WhenItPays(cores, lambda: Pool(cores)) if cores > 1 else None
        workers = worthwhile(expected, cores)
        return Pool(workers) if workers > 1 else None

    return opened


def _here(jobs: int | None, scheduler: str | None) -> Opener:
    _no_scheduler("here", scheduler)
    if jobs not in (None, 1):
        raise SpecError(f"engine 'here' is this process alone: leave --jobs {jobs} out, or ask for 'pool'.")
    return lambda expected: None


def _pool(jobs: int | None, scheduler: str | None) -> Opener:
    from seepage.engine.executors.pool import Pool

    _no_scheduler("pool", scheduler)
    return lambda expected: Pool(jobs or _cores())


def _ray(jobs: int | None, scheduler: str | None) -> Opener:
    from seepage.engine.executors.on_ray import RayExecutor

    if scheduler is not None:
        raise SpecError(f"Ray takes its address from the environment: set RAY_ADDRESS={scheduler} instead.")
    _installed("ray", "ray", "Ray")
    return lambda expected: RayExecutor(jobs)


def _dask(jobs: int | None, scheduler: str | None) -> Opener:
    from seepage.engine.executors.on_dask import DaskExecutor

    _installed("dask", "distributed", "Dask")
    return lambda expected: DaskExecutor(jobs, scheduler)


ENGINES: dict[str, Callable[[int | None, str | None], Opener]] = {
    "auto": _auto,
    "here": _here,
    "pool": _pool,
    "ray": _ray,
    "dask": _dask,
}
"""auto: a pool where it pays. here: this process. pool: one process for every core of this machine."""


def choose(engine: Engine, *, jobs: int | None = None, scheduler: str | None = None) -> Opener:
    """How to open it. What a user could have known before is said here: nothing has been started yet."""
    if jobs is not None and jobs < 1:
        raise SpecError(f"jobs must be at least 1, not {jobs}.")
    if isinstance(engine, Executor):
        if jobs is not None or scheduler is not None:
            raise SpecError("an executor of your own knows its workers: leave jobs and scheduler out.")
        return lambda expected: engine
    if not isinstance(engine, str):
        raise SpecError(
            f"engine must be a name or a concurrent.futures.Executor, not {type(engine).__name__}."
        )
    return lookup(ENGINES, engine, "engine")(jobs, scheduler)


@contextmanager
def open_executor(
    engine: Engine = "auto",
    *,
    jobs: int | None = None,
    scheduler: str | None = None,
    expected: Expected = None,
) -> Iterator[Executor | None]:
    """The executor for `finished`; None for this process. On leaving, what was opened here is closed.

    engine: a name of `ENGINES`, or an executor, which stays open.
    jobs: how many at a time; None: as many as there are cores, where that pays.
    scheduler: the address of a Dask scheduler.
    expected: seconds of every job, where they were estimated.

    >>> with open_executor("auto", expected=[0.1, 0.2]) as executor:
    ...     print(executor)
    None
    """
    opened = choose(engine, jobs=jobs, scheduler=scheduler)(expected)
    with nullcontext(opened) if opened is None or opened is engine else opened:
        yield opened


def _no_scheduler(engine: str, scheduler: str | None) -> None:
    if scheduler is not None:
        raise SpecError(f"engine '{engine}' has no scheduler: add --engine dask to use {scheduler}.")


def _installed(engine: str, package: str, name: str) -> None:
    if find_spec(package) is None:
        raise SpecError(f"engine '{engine}' needs {name}: pip install 'seepage[{engine}]'.")


def _cores() -> int:
    """Those that this process may use, which on a shared machine are fewer than there are."""
    from loky import cpu_count

    return int(cpu_count())
