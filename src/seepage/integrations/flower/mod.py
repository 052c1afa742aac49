"""A client mod that records: one added line in an app."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message
from flwr.clientapp.typing import ClientAppCallable, Mod
from torch import Tensor, nn

from seepage.core.types import Batch
from seepage.gating.middle import Action, Gatekeeper
from seepage.integrations.flower.messages import (
    arrays_of,
    is_training,
    named_alike,
    round_of,
    state_record,
    write,
)
from seepage.record.exchanges import ExchangeKind, Recorder

_WITHHELD = 6
"""Flower's code for a mod whose precondition failed (flwr.common.constant.ErrorCode)."""


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


def gatekeeper(
    model: nn.Module,
    batch: Callable[[Context], Batch],
    *,
    action: Action = "withhold",
    **options: Any,
) -> Mod:
    """Measure what this client sends before it leaves: `@app.train(mods=[gatekeeper(Net(), my_batch)])`.

    Listed first it sees what leaves the client, after every filter. What is above the threshold is altered or
    withheld (an error reply, which strategies leave out); what cannot be measured is withheld.
    model: the network that the arrays belong to. batch: the private examples behind this round's training.
    action, options: as `seepage.gating.Gatekeeper` and `seepage.gate` take them.
    """
    keeper = Gatekeeper(action, options)

    def gating(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        sent = arrays_of(message) if is_training(message) else None
        reply = call_next(message, context)
        answer = None if sent is None else arrays_of(reply)
        if sent is None or answer is None:
            return reply
        allowed = keeper.weights(model, sent, named_alike(sent, answer), batch(context))
        if allowed is None:
            return Message(Error(_WITHHELD, keeper.log[-1]), reply_to=message)
        _replace_arrays(reply, dict(zip(answer, allowed.values(), strict=True)))
        return reply

    return gating


def _replace_arrays(reply: Message, tensors: Mapping[str, Tensor]) -> None:
    for key, record in list(reply.content.array_records.items()):
        reply.content[key] = state_record({name: tensors[name] for name in record})


def client_of(context: Context) -> int:
    """The number of its partition in a simulation, else that of its node."""
    partition = context.node_config.get("partition-id")
    return int(partition) if isinstance(partition, int) else int(context.node_id)
