"""Flower's grid without a network: every message is answered by the real ClientApp in this process."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from seepage.core.errors import in_words

_FAILED = 1
"""Flower's code for a ClientApp that raised."""


class InProcessGrid(Grid):
    """Nodes 1 to `nodes`, with partitions 0 to `nodes` - 1, one after another. Each keeps its context."""

    def __init__(self, app: ClientApp, *, nodes: int, run_config: Mapping[str, Any] | None = None) -> None:
        self._app = app
        self._contexts = {
            partition + 1: Context(
                run_id=1,
                node_id=partition + 1,
                node_config={"partition-id": partition, "num-partitions": nodes},
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            for partition in range(nodes)
        }
        self._replies: dict[str, Message] = {}
        self.failures: list[str] = []
        """What clients raised, in one sentence each."""

    def set_run(self, run: Run) -> None:
        """There is one run only."""

    @property
    def run(self) -> Run:
        return Run.create_empty(1)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        for message in messages:
            name = str(uuid4())
            message.metadata.__dict__["_message_id"] = name
            self._replies[name] = self._answer(message)
            names.append(name)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(name) for name in list(message_ids) if name in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, message: Message) -> Message:
        """Strategies share one content among messages; over a network every client has its own."""
        received = copy.deepcopy(message)
        try:
            return self._app(received, self._contexts[message.metadata.dst_node_id])
        except Exception as error:  # a client's failure is a reply, as in Flower
            self.failures.append(in_words(error))
            return Message(Error(_FAILED, in_words(error)), reply_to=message)


@contextmanager
def task() -> Iterator[None]:
    """Messages are stamped with the task that makes them: this process is one while the app runs."""
    before = TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    try:
        yield
    finally:
        TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id = before
