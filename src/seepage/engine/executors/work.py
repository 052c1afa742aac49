"""What a worker is sent and what it does with it: bytes in, bytes out, the shared context built once."""

from __future__ import annotations

import importlib
import os
import pickle
import platform
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from seepage.core.errors import SeepageError, in_words

Context = TypeVar("Context")
Job = TypeVar("Job")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Work(Generic[Context, Job, Result]):
    """One kind of job: what all of them share, and how one of them is done.

    >>> work = Work(key="tens", build=lambda: 10, run=lambda ten, job: ten * job)
    >>> work.run(work.build(), 4)
    40
    """

    key: str
    """Stands for the context: a worker that has one of this key builds no other."""
    build: Callable[[], Context]
    """Makes the context. It travels to each worker once, so it may hold a model and data."""
    run: Callable[[Context, Job], Result]
    """Does one job. What it raises ends the whole run."""
    here: Context | None = None
    """The context of this process, where there is one already. It does not travel."""


@dataclass(frozen=True)
class Died:
    """In place of a result: the job ended its worker as often as it was tried."""

    reason: str


@dataclass(frozen=True)
class Origin:
    """Where a job comes from: relative paths and modules beside it mean the same for a worker."""

    folder: str
    path: tuple[str, ...]
    versions: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Outcome:
    """What came of a job, in a form that every executor can carry."""

    kind: Literal["done", "raised", "needs context"]
    value: Any = None


@cache
def _versions() -> tuple[tuple[str, str], ...]:
    python = ("Python", ".".join(platform.python_version_tuple()[:2]))  # what travels fits no other
    return (python, *((package, version(package)) for package in ("seepage", "torch", "numpy")))


def origin() -> Origin:
    """Of this process, as it is now."""
    folder = str(Path.cwd())
    return Origin(folder, tuple(str(Path(entry or folder).resolve()) for entry in sys.path), _versions())


def packed(work: Work[Any, Any, Any]) -> bytes:
    """The work as it travels. What a script or a notebook defines travels by value."""
    import cloudpickle

    return bytes(cloudpickle.dumps((work.build, work.run)))


@contextmanager
def one_thread() -> Iterator[None]:
    """A sum over two threads has other last bits than over one, so every cell is computed with one."""
    import torch
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(limits=1):
            yield
    finally:
        torch.set_num_threads(before)


_one_at_a_time = threading.Lock()
"""torch draws from one generator for the whole process: two cells at a time would mix their draws."""
_kept: dict[str, tuple[Any, Callable[[Any, Any], Any]]] = {}
"""The last context of this process, by its key, with what does a job."""


def do(key: str, sender: Origin, work: bytes | None, job: bytes) -> bytes:
    """One job, in a worker. Without the context and without `work` to build it, it asks for it."""
    with _one_at_a_time, _place_of(sender), one_thread():
        try:
            outcome = _outcome(key, sender, work, job)
            return _carried(outcome)
        except Exception as error:  # the process that asked decides what becomes of it
            return _carried(Outcome("raised", error))


def _outcome(key: str, sender: Origin, work: bytes | None, job: bytes) -> Outcome:
    if key not in _kept:
        if work is None:
            return Outcome("needs context")
        _check_versions(sender)
        _kept.clear()
        build, run = pickle.loads(work)
        try:
            _kept[key] = build(), run
        except SeepageError as reason:
            raise type(reason)(f"a worker on {platform.node()} cannot prepare the run: {reason}") from None
    context, run = _kept[key]
    return Outcome("done", run(context, pickle.loads(job)))


def _carried(outcome: Outcome) -> bytes:
    """Plain bytes: torch would otherwise share memory with a process that may be gone."""
    import cloudpickle

    try:
        return bytes(cloudpickle.dumps(outcome))
    except Exception:
        if outcome.kind != "raised":
            raise
        return pickle.dumps(Outcome("raised", SeepageError(in_words(outcome.value))))


def _check_versions(sender: Origin) -> None:
    own = dict(_versions())
    other = [f"{name} {own[name]}, not {wanted}" for name, wanted in sender.versions if own[name] != wanted]
    if other:
        raise SeepageError(
            f"a worker on {platform.node()} has {' and '.join(other)}: install the same versions everywhere, "
            "or the cells could not be compared."
        )


@contextmanager
def _place_of(sender: Origin) -> Iterator[None]:
    """The sender's folder, where it exists, and the modules that lie on the sender's path."""
    known = {str(Path(entry or ".").resolve()) for entry in sys.path}
    added = [entry for entry in sender.path if entry not in known and Path(entry).exists()]
    sys.path.extend(added)
    if added:
        importlib.invalidate_caches()
    with chdir(sender.folder) if os.access(sender.folder, os.X_OK) else nullcontext():
        yield
