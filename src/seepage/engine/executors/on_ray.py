"""The cores of a Ray cluster, one task for each job."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Any

from seepage.core.errors import SeepageError
from seepage.core.user_code import reason

ADDRESS = "RAY_ADDRESS"
_PATIENCE = 5.0
"""Seconds for a cluster to answer. Ray by itself would try for a minute."""
_OBJECT_STORE = 256 * 2**20
"""Bytes of shared memory of a cluster on this machine. Results are small, and Ray puts the rest on disk."""


class RayExecutor(Executor):
    """Ray has no executor of its own (ray-project/ray#29456): a task's future is already the standard one.

    Tasks of one driver share worker processes, so a context is built once per process. Ray does not try a
    task again: who sent it counts its attempts.
    """

    def __init__(self, jobs: int | None = None) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # A job may use the GPU that is there.
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray

        self._ray = ray
        self._jobs = jobs
        self._ours = not ray.is_initialized()
        if self._ours:
            self._connect(os.environ.get(ADDRESS))
        self._tasks: dict[Callable[..., Any], Any] = {}
        self._refs: dict[Future[Any], Any] = {}

    @property
    def workers(self) -> int:
        """As many as asked for; else the cores that the cluster has now."""
        return self._jobs or max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if fn not in self._tasks:
            self._tasks[fn] = self._ray.remote(num_cpus=1, max_retries=0)(fn)
        ref = self._tasks[fn].remote(*args, **kwargs)
        future: Future[Any] = ref.future()
        self._refs[future] = ref
        future.add_done_callback(self._forget)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """With `cancel_futures`, what is running is ended too, at once."""
        if cancel_futures:
            for ref in list(self._refs.values()):
                with suppress(self._ray.exceptions.RayError):
                    self._ray.cancel(ref, force=True)
        elif wait and self._refs:
            self._ray.wait(list(self._refs.values()), num_returns=len(self._refs))
        if self._ours:
            self._ray.shutdown()
            self._ours = False

    def __exit__(self, kind: object, *rest: object) -> None:
        self.shutdown(cancel_futures=kind is not None)

    def _forget(self, future: Future[Any]) -> None:
        self._refs.pop(future, None)

    def _connect(self, address: str | None) -> None:
        try:
            if address is None or address == "local":
                self._ray.init(
                    address="local",
                    num_cpus=self._jobs,
                    include_dashboard=False,
                    object_store_memory=_OBJECT_STORE,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
                return
            _check_answers(address)
            self._ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, OSError, ValueError, RuntimeError) as error:
            where = f"at {ADDRESS}={address}" if address else "on this machine"
            raise SeepageError(
                f"no Ray cluster {where} ({reason(error)}): start one with `ray start --head`, or unset "
                f"{ADDRESS} for one on this machine alone."
            ) from None


def _check_answers(address: str) -> None:
    """Of "auto" Ray knows by itself; of any other address, whether anybody listens there."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
