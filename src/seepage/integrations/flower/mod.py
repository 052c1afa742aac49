"""A client mod that records: one added line in an app."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable, Mod

from seepage.integrations.flower.messages import arrays_of, is_training, round_of, write
from seepage.record.exchanges import ExchangeKind, Recorder


def record(
    folder: Path | str,
    *,
    kind: ExchangeKind = "weights",
    rounds: Collection[int] | None = None,
    **known: Any,
) -> Mod:
    """Record what this client receives and sends: `@app.train(mods=[record("recorded/")])`.

    The first mod of a list is the outermost. Listed first, it records what leaves the client, after every
    filter; listed last, what training gave before any.
    kind: what the app sends back. rounds: only these. known: other fields of an exchange's JSON, such as
    local={"lr": 0.1, "epochs": 1, "batch_size": 32}.
    """
    recorder = Recorder(folder, replace=True)

    def recording(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        number = round_of(message)
        wanted = is_training(message) and (rounds is None or number in rounds)
        sent = arrays_of(message) if wanted else None  # before: training may change the message
        reply = call_next(message, context)
        if sent is not None:
            source = {"source": "Flower client mod", **known}
            write(recorder, sent, reply, round_number=number, client=client_of(context), kind=kind, **source)
        return reply

    return recording


def client_of(context: Context) -> int:
    """The number of its partition in a simulation, else that of its node."""
    partition = context.node_config.get("partition-id")
    return int(partition) if isinstance(partition, int) else int(context.node_id)
