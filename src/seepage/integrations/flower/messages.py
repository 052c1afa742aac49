"""What Flower's messages hold of an exchange."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.app import ArrayRecord, Message
from torch import Tensor

from seepage.core.errors import LogError
from seepage.record.exchanges import ExchangeKind, Recorder, from_array_record

LARGEST_ROUND = 10**9
ARRAYS = "arrays"
"""What Flower's strategies call the record of the model, unless they are told otherwise."""


def is_training(message: Message) -> bool:
    """Evaluations and queries send no update."""
    return str(message.metadata.message_type).split(".")[0] == "train"


def arrays_of(message: Message) -> dict[str, Tensor] | None:
    """The model's tensors in a message, whatever else it carries (control variates); None: there are none."""
    if not message.has_content():
        return None
    records = message.content.array_records
    found: dict[str, Tensor] = {}
    for key in [ARRAYS] if ARRAYS in records else records:
        tensors = from_array_record(records[key])
        if both := sorted(found.keys() & tensors.keys()):
            raise LogError(
                f"several array records of a message have a tensor '{both[0]}', and which of them is the "
                f"model's is not known: name the model's record '{ARRAYS}', as Flower's strategies do."
            )
        found |= tensors
    return found or None


def round_of(message: Message) -> int:
    """As the strategies of Flower say it; 0 where nobody does."""
    for config in message.content.config_records.values():
        said = config.get("server-round")
        if isinstance(said, int) and 0 <= said <= LARGEST_ROUND:
            return said
    group = str(message.metadata.group_id)
    return int(group) if group.isdecimal() and len(group) < 10 else 0


def examples_of(reply: Message) -> int | None:
    """What the client says that it trained on: the server weighs its update by this."""
    for metrics in reply.content.metric_records.values():
        said = metrics.get("num-examples")
        if isinstance(said, int | float) and said >= 1 and float(said).is_integer():
            return int(said)
    return None


def named_alike(sent: Mapping[str, Tensor], answer: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Arrays of a NumPyClient have numbers for names: they get those of what was sent, in order."""
    if set(answer) <= set(sent) or len(answer) != len(sent):
        return dict(answer)
    return dict(zip(sent, answer.values(), strict=True))


def write(
    recorder: Recorder,
    sent: Mapping[str, Tensor],
    reply: Message,
    *,
    round_number: int,
    client: int,
    kind: ExchangeKind,
    **known: Any,
) -> None:
    """Record one exchange; a reply without arrays (an error, metrics alone) is none."""
    answer = arrays_of(reply)
    if answer is None:
        return
    recorder.write(
        sent,
        named_alike(sent, answer),
        kind=kind,
        round=round_number,
        client=client,
        examples=examples_of(reply),
        **known,
    )


def state_record(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    return ArrayRecord(dict(tensors))
