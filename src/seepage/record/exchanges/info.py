"""What is known of one recorded exchange: the JSON beside its tensors. Plain data, readable without torch.

`docs/recorded-exchange.schema.json` is the schema of `ExchangeInfo`.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import Field

from seepage.record.refs import Record

FORMAT_VERSION: Final = 1
ExchangeKind = Literal["gradient", "delta", "weights"]
"""What the update's tensors are: a gradient, new weights minus received ones, or the new weights."""
Part = Literal["model", "update"]
"""The two files of tensors."""
MODEL, UPDATE, INFO = ".model.safetensors", ".update.safetensors", ".json"
"""How the three files of an exchange end."""
NAME = re.compile(r"round(\d{4,20})-client(\d{4,20})")
_LARGEST = 10**20 - 1
Number = Annotated[int, Field(ge=0, le=_LARGEST)]
Count = Annotated[int, Field(ge=1, le=10**9)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Checksum = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


def exchange_name(round_number: int, client: int) -> str:
    """The name that the files of an exchange have in common.

    >>> exchange_name(1, 12)
    'round0001-client0012'
    """
    return f"round{round_number:04d}-client{client:04d}"


class LocalTrainingInfo(Record):
    """How the client trained, as far as it is known; None: not known."""

    optimizer: Annotated[str, Field(max_length=40)] | None = None
    """"sgd", "adam", "adamw", ... in lower case."""
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    batch_size: Count | None = None
    """Examples of one local step."""
    epochs: Count | None = None
    steps: Count | None = None
    """Local steps in all."""
    shuffle: bool | None = None
    """Whether the client went through its examples in an order that the server does not know."""
    momentum: Finite | None = None
    weight_decay: Finite | None = None
    schedule: Literal["constant", "linear", "cosine"] | None = None
    """How the rate falls to zero over the local steps of a round."""
    accumulation: Count | None = None
    """Mini-batches whose mean gradient makes one step of the optimiser."""
    clip_norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Norm that each step's gradient is scaled down to."""
    mixed_precision: bool | None = None
    """Whether the client computed under autocast in bfloat16."""
    loss: Annotated[str, Field(max_length=40)] | None = None
    """A name that `protocol.loss` of an audit takes."""
    batch_norm: Literal["eval", "train"] | None = None
    """train: the client normalised by the statistics of its own batches."""
    dropout: bool | None = None
    """Whether layers with dropout were in train mode."""


class InputInfo(Record):
    """What one example is, as far as it is known."""

    modality: Literal["image", "text", "tabular"]
    shape: Annotated[tuple[Count, ...], Field(min_length=1, max_length=4)]
    num_classes: Count
    value_range: tuple[Finite, Finite] | None = None
    """Lowest and highest raw value."""
    mean: tuple[Finite, ...] | None = None
    std: tuple[Finite, ...] | None = None
    """What clients normalise by: model input = (raw - mean) / std, one number a channel or column."""
    vocabulary: Count | None = None


class ExchangeInfo(Record):
    """The whole of `roundRRRR-clientCCCC.json`."""

    format: Literal["seepage-exchange"] = "seepage-exchange"
    format_version: Literal[1] = FORMAT_VERSION
    written_by: Annotated[str, Field(max_length=80)] = ""
    """Program and version."""
    source: Annotated[str, Field(max_length=200)] = ""
    """One plain line on where it was recorded, as in "Flower client mod"."""
    kind: ExchangeKind
    round: Number
    client: Number
    examples: Count | None = None
    """How many the client trained on."""
    dtype: Annotated[str, Field(max_length=20)]
    """Of the update's floating numbers as they were sent: "float32", "float16", "bfloat16", ..."""
    local: LocalTrainingInfo = LocalTrainingInfo()
    buffers: Literal["values", "differences"] = "values"
    """What the update's entries for buffers are (the running statistics of batch norm): new values, or new
    values minus received ones. Of kind weights: values."""
    filters: Annotated[tuple[Annotated[str, Field(max_length=200)], ...], Field(max_length=100)] = ()
    """Names of filters, mods and defenses that the update is known to have passed, the innermost first."""
    input: InputInfo | None = None
    rows: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    """Which rows of the data set that an audit is given as the truth the client trained on. For scoring: no
    attack is told."""
    checksums: dict[Part, Checksum] = Field(default_factory=dict)
    """SHA-256 of the two files; seepage writes them, and checks them where they are there."""

    @property
    def name(self) -> str:
        return exchange_name(self.round, self.client)
