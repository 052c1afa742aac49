"""Sending and taking, against executors that lose what they are told to lose; and opening by name."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from seepage.core.errors import ModelError, SeepageError, SpecError
from seepage.engine.executors import Died, Work, completion, finished, open_executor, pays
from seepage.engine.executors.pays import WhenItPays, makespan, worthwhile
from seepage.engine.executors.pool import Pool
from seepage.engine.executors.work import _kept, one_thread

from .cells import builds


@pytest.fixture(autouse=True)
def _no_context_from_before() -> Iterator[None]:
    _kept.clear()
    yield
    _kept.clear()


class Losing(Executor):
    """Answers at once, in this process, unless `lost` has an error for the call of this number."""

    def __init__(self, lost: Callable[[int], BaseException | None], workers: int | None = 2) -> None:
        self.lost, self.workers = lost, workers
        self.calls = 0
        self.contexts_sent = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.calls += 1
        self.contexts_sent += args[2] is not None
        future: Future[Any] = Future()
        error = self.lost(self.calls)
        if error is None:
            future.set_result(fn(*args, **kwargs))
        else:
            future.set_exception(error)
        return future


TENS: Work[int, int, int] = Work(key="tens", build=lambda: 10, run=lambda ten, job: ten * job)


class KilledWorker(Exception):  # noqa: N818 - Dask's name
    __module__ = "distributed.scheduler"


class WorkerCrashedError(Exception):
    __module__ = "ray.exceptions"


@pytest.mark.parametrize("error", [BrokenExecutor("gone"), WorkerCrashedError(), CancelledError()])
def test_a_lost_job_is_run_again(error: BaseException) -> None:
    executor = Losing(lambda call: error if call == 2 else None)
    assert dict(finished(executor, TENS, range(5))) == {job: 10 * job for job in range(5)}
    assert executor.calls == 6


@pytest.mark.parametrize(("error", "calls"), [(BrokenExecutor("gone"), 3), (KilledWorker(), 1)])
def test_a_job_that_is_lost_too_often_is_given_up(error: BaseException, calls: int) -> None:
    executor = Losing(lambda call: error)
    ((job, result),) = finished(executor, TENS, [7])
    assert job == 7 and isinstance(result, Died) and executor.calls == calls


def test_any_other_error_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        list(finished(Losing(lambda call: ZeroDivisionError()), TENS, [1]))


def test_a_worker_without_seepage_is_one_sentence() -> None:
    missing = ModuleNotFoundError("No module named 'seepage'")
    with pytest.raises(SeepageError, match=r"cannot begin \(No module named 'seepage'\): install seepage"):
        list(finished(Losing(lambda call: missing), TENS, [1]))


def test_the_context_travels_once_for_each_worker_and_again_to_one_that_has_none() -> None:
    executor = Losing(lambda call: None)
    for job, _ in finished(executor, TENS, range(10)):
        if job == 5:
            _kept.clear()  # as if both workers had been started anew
    assert executor.contexts_sent == 4


def test_the_last_try_of_a_job_is_made_alone() -> None:
    """With two workers, the second death of a job sends it to the end of the queue, after all the others."""
    with ThreadPoolExecutor(2) as threads:
        lock = threading.Lock()
        now, at_each_try = 0, []

        class Counting(Executor):
            workers = 2

            def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
                return threads.submit(self.run, fn, *args)

            def run(self, fn: Callable[..., Any], *args: Any) -> Any:
                nonlocal now
                with lock:
                    now += 1
                try:
                    answer = fn(*args)
                    if answer is not None and b"dies" in args[3]:
                        at_each_try.append(now)
                        raise BrokenExecutor("gone")
                    return answer
                finally:
                    with lock:
                        now -= 1

        work: Work[None, str, str] = Work(key="alone", build=lambda: None, run=lambda _, job: job)
        results = dict(finished(Counting(), work, ["dies", *"abcdef"]))
    assert len(at_each_try) == 3 and isinstance(results["dies"], Died) and at_each_try[-1] == 1
    assert list(results)[-1] == "dies" and len(results) == 7


def test_threads_of_one_process_take_turns() -> None:
    """torch has one generator for them all."""

    def run(_: None, job: int) -> list[float]:
        torch.manual_seed(job)
        return [float(torch.rand(())) for _ in range(200)]

    work: Work[None, int, list[float]] = Work(key="draws", build=lambda: None, run=run)
    with ThreadPoolExecutor(4) as threads:
        assert dict(finished(threads, work, range(8))) == dict(finished(None, work, range(8)))


def test_what_cannot_travel_stays_here_with_a_note() -> None:
    lock, notes = threading.Lock(), []
    work: Work[Any, int, bool] = Work(key="lock", build=lambda: lock, run=lambda held, job: held is lock)
    assert dict(finished(Losing(lambda call: None), work, [1], on_note=notes.append)) == {1: True}
    (note,) = notes
    assert note.startswith("what is audited cannot be sent to another process (") and note.count(". ") == 0


def test_a_context_that_cannot_be_built_says_where() -> None:
    def build() -> None:
        raise ModelError("there is no file weights.pt.")

    work: Work[None, int, int] = Work(key="missing", build=build, run=lambda _, job: job)
    with pytest.raises(ModelError, match=r"^a worker on .* cannot prepare the run: there is no file"):
        list(finished(Losing(lambda call: None), work, [1]))


def test_another_version_on_a_worker_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from seepage.engine.executors import work as module

    class Elsewhere(Losing):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            with monkeypatch.context() as patch:
                patch.setattr(module, "_versions", lambda: (*sent[:2], ("torch", "1.0"), *sent[3:]))
                return super().submit(fn, *args, **kwargs)

    sent = module._versions()
    assert [package for package, _ in sent] == ["Python", "seepage", "torch", "numpy"]
    with pytest.raises(SeepageError, match=r"has torch 1\.0, not .*: install the same versions everywhere"):
        list(finished(Elsewhere(lambda call: None), TENS, [1]))


def test_ctrl_c_loses_nothing_that_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(completion, "wait", interrupted)
    seen = []
    with pytest.raises(KeyboardInterrupt):
        for job, result in finished(Losing(lambda call: None), TENS, [1, 2, 3]):
            seen.append((job, result))
    assert seen == [(1, 10), (2, 20)]


def test_one_thread_is_for_torch_and_numpy_alike() -> None:
    from threadpoolctl import threadpool_info

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
            assert {pool["num_threads"] for pool in threadpool_info()} == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_an_outcome_that_cannot_be_pickled_is_still_said() -> None:
    class OddError(Exception):
        def __reduce__(self) -> Any:
            raise TypeError("no")

    def run(_: None, job: int) -> int:
        raise OddError("what happened")

    work: Work[None, int, int] = Work(key="odd", build=lambda: None, run=run)
    with pytest.raises(SeepageError, match=r"^OddError: what happened\.$"):
        list(finished(Losing(lambda call: None), work, [1]))


def test_short_work_starts_no_pool_and_long_work_does(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(completion.time, "monotonic", lambda: clock[0])

    def working(seconds: float) -> Work[None, int, int]:
        def run(_: None, job: int) -> int:
            clock[0] += seconds
            return job

        return Work(key=f"{seconds}", build=lambda: None, run=run)

    for seconds, jobs, sent in ((0.1, 30, 0), (1.0, 10, 6), (100.0, 3, 2), (100.0, 2, 0)):
        pool = Losing(lambda call: None)
        executor = WhenItPays(2, lambda pool=pool: pool)
        assert len(dict(finished(executor, working(seconds), range(jobs)))) == jobs
        assert pool.calls == sent, (seconds, jobs)
    assert pays.WORKER_START == 4.0  # which the numbers above rest on


def test_how_many_workers_are_worth_it_against_trying_all_orders() -> None:
    from itertools import product

    for expected in ([5.0, 4.0, 3.0, 3.0, 3.0], [10.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0]):
        for workers in (1, 2, 3):
            best = min(
                max(
                    sum(t for t, place in zip(expected, places, strict=True) if place == w)
                    for w in range(workers)
                )
                for places in product(range(workers), repeat=len(expected))
            )
            # The longest first is at most 4/3 - 1/(3 m) of the best (Graham 1969).
            assert best <= makespan(expected, workers) <= best * (4 / 3 - 1 / (3 * workers)) + 1e-9
    assert worthwhile([4.0, 4.0], 2) == 1 and worthwhile([4.1, 4.1], 2) == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"engine": "raay"}, r"unknown engine 'raay': did you mean 'ray'\?"),
        ({"engine": "pool", "jobs": 0}, "jobs must be at least 1, not 0"),
        ({"engine": "here", "jobs": 4}, "this process alone"),
        ({"engine": "auto", "scheduler": "tcp://a:1"}, "add --engine dask to use tcp://a:1"),
        ({"engine": "pool", "scheduler": "tcp://a:1"}, "add --engine dask to use tcp://a:1"),
        ({"engine": 3}, "a name or a concurrent.futures.Executor, not int"),
    ],
)
def test_what_cannot_be_opened(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence), open_executor(**arguments):
        pass


@pytest.mark.parametrize(("engine", "package"), [("ray", "ray"), ("dask", "distributed")])
def test_without_the_extra_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, engine: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with (
        pytest.raises(SpecError, match=rf"^engine '{engine}' needs .*: pip install 'seepage\[{engine}\]'\.$"),
        open_executor(engine),
    ):
        pass


def test_what_auto_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["seepage.engine.executors.opening"], "_cores", lambda: 8)
    for arguments, workers in (
        ({"expected": [0.1] * 4}, None),
        ({"expected": [60.0] * 4}, 4),
        ({"expected": [60.0] * 40}, 8),
        ({"expected": [0.1] * 4, "jobs": 3}, 3),
    ):
        with open_executor("auto", **arguments) as executor:
            assert (executor.workers if isinstance(executor, Pool) else None) == workers
    with open_executor() as executor:
        assert isinstance(executor, WhenItPays)


def test_relative_paths_and_modules_of_the_sender_mean_the_same(tmp_path: Path) -> None:
    """The worker is in another folder, as one of a cluster is."""
    (tmp_path / "beside_the_audit.py").write_text("VALUE = 5\n")
    (tmp_path / "data.txt").write_text("7")
    sent_from = Path.cwd()

    class Elsewhere(Losing):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            os.chdir("/")
            sys.path.remove(str(tmp_path))
            try:
                return super().submit(fn, *args, **kwargs)
            finally:
                os.chdir(sent_from)

    def build() -> tuple[int, str]:
        import beside_the_audit  # type: ignore[import-not-found]

        return beside_the_audit.VALUE, Path("data.txt").read_text()

    work: Work[Any, int, Any] = Work(key="beside", build=build, run=lambda context, job: context)
    sys.path.append(str(tmp_path))
    try:
        assert dict(finished(Elsewhere(lambda call: None), work, [0])) == {0: (5, "7")}
    finally:
        sys.path[:] = [entry for entry in sys.path if entry != str(tmp_path)]
        sys.modules.pop("beside_the_audit", None)


def test_an_executor_that_takes_no_more_work_is_one_sentence(tmp_path: Path) -> None:
    broken = ThreadPoolExecutor(1)
    broken.shutdown()
    with pytest.raises(SeepageError, match=r"takes no more work .*; what is finished is kept"):
        list(finished(broken, builds(tmp_path), [1]))
