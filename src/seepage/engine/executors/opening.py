"""Choosing an engine by its name, and opening it once what it has to do is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib.util import find_spec

from seepage.core.errors import SpecError
from seepage.core.registry import unknown
from seepage.engine.executors.pays import WhenItPays, worthwhile

Engine = str | Executor
"""A name of `ENGINES`, or any executor of the user's own."""
Expected = Sequence[float] | None
"""Seconds of every job, where they were estimated."""
Opener = Callable[[Expected], Executor | None]


ENGINES = ("auto", "here", "pool", "ray", "dask")
"""auto: a pool where it pays. here: this process. pool: one process for every core of this machine."""
_PACKAGES = {"ray": ("ray", "Ray"), "dask": ("distributed", "Dask")}
"""What an engine needs installed, and what that is called."""


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
    if engine not in ENGINES:
        raise SpecError(unknown("engine", engine, ENGINES))
    if scheduler is not None and engine == "ray":
        raise SpecError(f"Ray takes its address from the environment: set RAY_ADDRESS={scheduler} instead.")
    if scheduler is not None and engine != "dask":
        raise SpecError(f"engine '{engine}' has no scheduler: add --engine dask to use {scheduler}.")
    if engine == "here" and jobs not in (None, 1):
        raise SpecError(f"engine 'here' is this process alone: leave --jobs {jobs} out, or ask for 'pool'.")
    package, name = _PACKAGES.get(engine, ("", ""))
    if package and find_spec(package) is None:
        raise SpecError(f"engine '{engine}' needs {name}: pip install 'seepage[{engine}]'.")
    return partial(_opened, engine, jobs, scheduler)


def _opened(engine: str, jobs: int | None, scheduler: str | None, expected: Expected) -> Executor | None:
    if engine == "dask":
        from seepage.engine.executors.on_dask import DaskExecutor

        return DaskExecutor(jobs, scheduler)
    if engine == "ray":
        from seepage.engine.executors.on_ray import RayExecutor

        return RayExecutor(jobs)
    from seepage.engine.executors.pool import Pool

    workers = 1 if engine == "here" else jobs or _cores()
    if engine == "pool":
        return Pool(workers)
    if engine == "auto" and jobs is None and expected is not None:
        workers = worthwhile(expected, workers)
    elif engine == "auto" and jobs is None and workers > 1:
        return WhenItPays(workers, lambda: Pool(workers))
    return Pool(workers) if workers > 1 else None


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


def _cores() -> int:
    """Those that this process may use, which on a shared machine are fewer than there are."""
    from loky import cpu_count

    return int(cpu_count())
