"""A mod of Flower round a client's step: run by a real ClientApp on a real Message."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.app.metadata import Metadata
from flwr.clientapp import ClientApp

from seepage.core.errors import NotApplicable
from seepage.core.registry import wants
from seepage.core.types import Batch, Broadcast, Defense, LocalStep, Update
from seepage.defenses.entry import Deployment
from seepage.defenses.frameworks import running

_RUN, _SERVER, _NODE, _TASK = 1, 1, 2, 1
"""Identities that Flower wants in a message. A choice: nothing depends on them."""
_AN_HOUR = 3600.0
"""A choice: how long a message that never leaves this process is good for."""


def builder(name: str, thing: Any, config: Mapping[str, Any] | None) -> Callable[..., Defense]:
    """From a mod, or a class of mods, to what builds a defense from the mod's own settings and ours.

    config: settings that the mod reads from the server's message; None as a value: there is no default.
    """
    is_mod = not isinstance(thing, type) and wants(thing) == 3
    own = {} if is_mod else running.constructor_settings(thing)
    sent = {
        key: inspect.Parameter(
            key, inspect.Parameter.KEYWORD_ONLY, default=inspect.Parameter.empty if value is None else value
        )
        for key, value in (config or {}).items()
    }

    def build(
        *,
        config: Mapping[str, Any] | None = None,
        seed: int = 0,
        deployment: Deployment | None = None,
        **options: Any,
    ) -> Defense:
        around = deployment or Deployment()
        running.check_protocol(name, around.training)
        of_message = {**{key: options.pop(key, p.default) for key, p in sent.items()}, **(config or {})}
        mod = thing if is_mod else thing(**options)
        values = {"lr": around.training.lr, **of_message}
        return _Modded(name, mod, values, around.training.send_buffers, random.Random(seed))

    return running.with_settings(build, {**own, **sent})


class _Modded:
    """The defense: each call is one train message to a client with this mod."""

    def __init__(
        self, name: str, mod: Any, config: Mapping[str, Any], buffers: bool, seeds: random.Random
    ) -> None:
        self.name, self.mod, self.config, self.buffers, self.seeds = name, mod, dict(config), buffers, seeds
        self.context = Context(run_id=_RUN, node_id=_NODE, node_config={}, state=RecordDict(), run_config={})

    def __call__(self, broadcast: Broadcast, batch: Batch, next_step: LocalStep) -> Update:
        received = running.received_tensors(broadcast.model, buffers=self.buffers)
        before = running.to_arrays(received)
        trained: list[Update] = []
        app = ClientApp()

        @app.train(mods=[self.mod])
        def train(message: Message, context: Context) -> Message:
            arrays = _read(message)
            update = next_step(running.with_weights(broadcast, arrays), batch)
            trained.append(update)
            delta = running.to_arrays(running.change(update, received))
            new = _record({name: array + delta[name] for name, array in arrays.items()})
            metrics = MetricRecord({"num-examples": len(batch)})
            return Message(content=RecordDict({"arrays": new, "metrics": metrics}), reply_to=message)

        config = ConfigRecord({"server-round": broadcast.round + 1, **self.config})
        content = RecordDict({"arrays": _record(before), "config": config})
        with running.as_it_runs(self.seeds, self.name):
            reply = app(_message(content), self.context)
            if reply.has_error():
                raise NotApplicable(f"'{self.name}' lets nothing be sent: {reply.error.reason}")
            after = _read(reply)
        if not trained:
            raise NotApplicable(f"'{self.name}' answered without any training.")
        delta = {name: value - before[name] for name, value in after.items()}
        return running.changed_update(trained[-1], delta, received)


def _message(content: RecordDict) -> Message:
    metadata = Metadata(
        run_id=_RUN,
        message_id="",
        src_node_id=_SERVER,
        dst_node_id=_NODE,
        reply_to_message_id="",
        group_id="",
        created_at=0.0,
        ttl=_AN_HOUR,
        message_type="train",
        src_task_id=_TASK,
        dst_task_id=_TASK,
    )
    message: Message = Message(content=content, metadata=metadata)  # type: ignore[call-overload]
    return message


def _record(arrays: running.Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in arrays.items()})


def _read(message: Message) -> running.Arrays:
    record = next(iter(message.content.array_records.values()))
    return {name: array.numpy() for name, array in record.items()}
