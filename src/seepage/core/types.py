"""The core types: what passes between server, clients, attacks and scoring.

The truth (a client's `Batch`) goes from the workload to local training and to scoring, and nowhere
else. An attack receives `Exchange`s and `Knowledge`; neither has a field a batch could travel in, except
`Knowledge.auxiliary`, which holds public examples that are disjoint from every victim's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal

import torch
from torch import Tensor, nn

PADDING = -100
"""Among token ids: there is no token here. It is what torch's cross-entropy leaves out, so that ids can be
targets as they are; Hugging Face's models are fed it as padding under an attention mask."""
INPUT_SPACE = "input"
"""`Reconstruction.space` for values that are model inputs; any other space is a layer's name."""


class Modality(StrEnum):
    """What kind of thing one example is."""

    IMAGE = "image"
    TEXT = "text"
    TABULAR = "tabular"


class ColumnKind(StrEnum):
    """What the values of one column of a table are, which decides when two of them are the same."""

    REAL = "real"
    """Measured: the same within a tolerance."""
    INTEGER = "integer"
    """Counted: whole numbers, the same when they are equal after rounding."""
    CATEGORICAL = "categorical"
    """One of a category's columns in one-hot code, 0 or 1."""


class Grant(StrEnum):
    """One thing a threat model lets the server know or do. Attacks list the ones they require."""

    LABELS = "labels"
    BATCH_SIZE = "batch_size"
    LOCAL_TRAINING = "local_training"
    BUFFERS = "buffers"
    VALUE_RANGE = "value_range"
    NORMALISATION = "normalisation"
    AUXILIARY = "auxiliary_data"
    CRAFT_WEIGHTS = "craft_weights"
    INDIVIDUAL_UPDATES = "individual_updates"
    TARGET_CLIENT = "target_client"
    SEVERAL_ROUNDS = "several_rounds"
    CHOOSE_CLIENTS = "choose_clients"
    """To say which clients, two at least, take part in a round."""
    DIFFERENT_MODELS = "different_models"
    """To send different models to the clients of one round, which they do not compare."""


@dataclass(frozen=True, kw_only=True)
class InputSpec:
    """Shape and meaning of one example. Values are *raw* (as the data came) or *model* (normalised).

    >>> spec = InputSpec(modality=Modality.IMAGE, shape=(1, 2, 2), num_classes=2, mean=(0.5,), std=(0.25,))
    >>> x = torch.rand(3, 1, 2, 2)
    >>> torch.allclose(spec.to_raw(spec.to_model(x)), x, atol=1e-6)
    True
    """

    modality: Modality
    shape: tuple[int, ...]
    num_classes: int
    value_range: tuple[float, float] | None = (0.0, 1.0)
    """Lowest and highest raw value, of a table that of every column; None when unknown (and for text)."""
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    """Per channel (image) or per column (tabular): model = (raw - mean) / std."""
    vocabulary: int | None = None
    """Text only: number of token ids."""
    tokens: tuple[str, ...] = field(default=(), repr=False)
    """Text only: the word of each id, for reading; may be empty."""
    num_targets: int = 0
    """Numbers that a model is to say of each example in the place of a class: those of a regression, or
    several flags at once. `num_classes` is 1 then."""
    token_labels: bool = False
    """Text only: each token has one of `num_classes` classes of its own, and the text as a whole has none."""
    class_names: tuple[str, ...] = field(default=(), repr=False)
    column_names: tuple[str, ...] = field(default=(), repr=False)
    categories: tuple[tuple[int, ...], ...] = ()
    """Tabular only: groups of columns that are one category in one-hot code, exactly one of them 1."""
    integer: tuple[int, ...] = ()
    """Tabular only: columns that hold whole numbers."""
    spread: tuple[float, ...] | None = None
    """Tabular only: each column's spread over all data at hand, as `data.columns.spreads` has it: the unit of
    its errors. It is for measuring: no server is told."""

    @property
    def kinds(self) -> tuple[ColumnKind, ...]:
        """The kind of each column of a table.

        >>> spec = InputSpec(
        ...     modality=Modality.TABULAR, shape=(4,), num_classes=2, categories=((1, 2),), integer=(3,)
        ... )
        >>> [str(kind) for kind in spec.kinds]
        ['real', 'categorical', 'categorical', 'integer']
        """
        kinds = dict.fromkeys(self.integer, ColumnKind.INTEGER)
        kinds |= {column: ColumnKind.CATEGORICAL for group in self.categories for column in group}
        return tuple(kinds.get(column, ColumnKind.REAL) for column in range(self.shape[0]))

    def _stat(self, values: tuple[float, ...], like: Tensor) -> Tensor:
        # (C,) -> (C, 1, 1) for images, (D,) for rows: broadcasts against a leading batch dimension
        trailing = (1,) * (len(self.shape) - 1)
        return torch.tensor(values, dtype=like.dtype, device=like.device).reshape(-1, *trailing)

    def to_model(self, raw: Tensor) -> Tensor:
        """Raw values to what the model is fed."""
        if self.mean is None or self.std is None:
            return raw
        values = self._exactly(raw)
        return ((values - self._stat(self.mean, values)) / self._stat(self.std, values)).to(raw.dtype)

    def to_raw(self, model_values: Tensor) -> Tensor:
        """What the model is fed back to raw values."""
        if self.mean is None or self.std is None:
            return model_values
        values = self._exactly(model_values)
        return (values * self._stat(self.std, values) + self._stat(self.mean, values)).to(model_values.dtype)

    def _exactly(self, values: Tensor) -> Tensor:
        """Rows in float64, where there is one: a column's mean may be a million times its smallest step."""
        table = self.modality is Modality.TABULAR and values.device.type != "mps"
        return values.double() if table and values.is_floating_point() else values


@dataclass(frozen=True)
class Batch:
    """Examples as the model is fed them: inputs (n, *shape), labels (n,) int64 or (n, targets) numbers.

    Texts are token ids (n, length), `PADDING` where a text is shorter. The targets of a language model are
    these tokens themselves (the loss `next_token`), so labels stay one number an example: 0 without classes.
    """

    inputs: Tensor
    labels: Tensor
    targets: Tensor | None = None
    """(n, length) int64: the class of each token, or the word behind a mask; `PADDING` for none."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> Tensor:
        """(n,) int64: the class of each example; 0 where a model is to say numbers.

        >>> Batch(torch.rand(2, 3), torch.tensor([[0.5], [2.5]])).classes
        tensor([0, 0])
        """
        numbers = self.labels.is_floating_point()
        return self.labels.new_zeros(len(self), dtype=torch.long) if numbers else self.labels

    def to(self, device: torch.device | str) -> Batch:
        return self._each(lambda tensor: tensor.to(device))

    def select(self, index: Tensor | slice) -> Batch:
        return self._each(lambda tensor: tensor[index])

    def clone(self) -> Batch:
        return self._each(Tensor.clone)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        targets = None if self.targets is None else change(self.targets)
        return Batch(change(self.inputs), change(self.labels), targets)

    @staticmethod
    def concat(batches: Sequence[Batch]) -> Batch:
        targets = [b.targets for b in batches if b.targets is not None]
        return Batch(
            torch.cat([b.inputs for b in batches]),
            torch.cat([b.labels for b in batches]),
            torch.cat(targets) if targets else None,
        )


@dataclass(frozen=True, kw_only=True)
class Masking:
    """How clients of a masked language model hide words, as Hugging Face's data collator does it."""

    mask: int
    """The token that takes a hidden word's place."""
    vocabulary: int
    never: tuple[int, ...] = ()
    """Tokens that are not hidden: those that begin, end and part texts."""
    share: float = 0.15
    """Devlin et al. 2019. Of the hidden words 80 % become the mask, 10 % any word, and 10 % stay."""


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """What a client does with a received model. FedSGD: one gradient. FedAvg: several SGD steps."""

    algorithm: Literal["fedsgd", "fedavg"] = "fedsgd"
    batch_size: int | None = None
    """Local mini-batch size; None: all of the client's examples at once."""
    epochs: int = 1
    steps: int | None = None
    """Stop after this many local steps, whatever the epochs say."""
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """As in torch.optim, with its defaults but for the rate, the decay and, of SGD, the momentum."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the rate falls to zero over the local steps of a round."""
    accumulation: int = 1
    """Mini-batches whose mean gradient makes one step of the optimiser."""
    clip_norm: float | None = None
    """Each step's gradient is scaled down to this norm at most; None: it is not."""
    mixed_precision: bool = False
    """Clients compute under torch.autocast in bfloat16; weights and updates keep their type."""
    shuffle_seed: int | None = None
    """Order of the local mini-batches; None: as the data lie."""
    loss: str = "auto"
    """A name from `protocol.LOSSES`; auto: binary for a single output, next_token for outputs at every token,
    cross-entropy otherwise."""
    batch_norm: Literal["eval", "train"] = "eval"
    """eval: running statistics are used and kept. train: batch statistics are used and buffers move."""
    send_buffers: bool = False
    masking: Masking | None = None
    """Of a masked language model: drawn anew at every step."""

    @property
    def plain(self) -> bool:
        """SGD at a constant rate on gradients as they are: the change of the weights is a sum of gradients.

        >>> LocalTraining().plain, LocalTraining(algorithm="fedavg", optimizer="adam").plain
        (True, False)
        """
        usual = self.optimizer == "sgd" and self.schedule == "constant" and self.accumulation == 1
        return self.algorithm == "fedsgd" or (usual and self.clip_norm is None)

    def num_steps(self, num_examples: int) -> int:
        """Local SGD steps that `num_examples` lead to.

        >>> LocalTraining(algorithm="fedavg", batch_size=8, epochs=2).num_steps(20)
        6
        """
        if self.algorithm == "fedsgd":
            return 1
        per_epoch = -(-num_examples // (self.batch_size or num_examples))
        total = per_epoch * self.epochs
        return total if self.steps is None else min(self.steps, total)

    def num_reached(self, num_examples: int) -> int:
        """Of `num_examples`, those that are in a step at all: a client may stop within its first epoch.

        >>> LocalTraining(algorithm="fedavg", batch_size=8, steps=2).num_reached(20)
        16
        """
        return min(num_examples, self.num_steps(num_examples) * (self.batch_size or num_examples))


class UpdateKind(StrEnum):
    """Which way an update points. Mistaking one for the other flips the sign of every label."""

    GRADIENT = "gradient"
    DELTA = "delta"
    """New weights minus received weights: about -lr times the summed gradients."""


@dataclass(frozen=True)
class Broadcast:
    """What a client receives."""

    model: nn.Module
    round: int = 0


@dataclass(frozen=True, kw_only=True)
class Update:
    """What a client sends, or what an aggregator makes of several: tensors by parameter name."""

    kind: UpdateKind
    tensors: Mapping[str, Tensor]
    num_examples: int | None = None
    buffers: Mapping[str, Tensor] | None = None
    derived: bool = False
    """The server made it of what it received, as fishing does: its last digits are not the client's."""


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What the server keeps of one round with one client, or with several that it sees only summed."""

    broadcast: Broadcast
    update: Update
    clients: tuple[int, ...]
    labels: Tensor | None = None
    """The clients' labels, only where the threat model grants them."""
    secret: Any = None
    """What `craft` wants to remember for `reconstruct`: a small dataclass of the attack's own."""


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """What the threat model lets the server know besides the exchanges. Written next to every result."""

    input: InputSpec
    """Value range, mean and std are None here unless granted."""
    loss: str = "cross_entropy"
    local: LocalTraining | None = None
    auxiliary: Batch | None = None
    normalised: bool = False
    """Clients normalise their inputs, but the server was not told how: values stay in model units."""
    seed: int = 0
    """For the attack's own randomness."""


@dataclass(frozen=True)
class Crafted:
    """A model the server chooses to send: to all selected clients, or to `clients` only."""

    model: nn.Module
    secret: Any = None
    clients: tuple[int, ...] | None = None
    others: nn.Module | None = None
    """What everybody but `clients` gets, who then take part in the round as well; None: they are left out."""
    turns: tuple[nn.Module, ...] = ()
    """What clients get in turn instead of `model`: client c the one at c modulo their number; empty: all get
    the same."""


LocalStep = Callable[[Broadcast, Batch], Update]
"""A client's work in one round."""

Defense = Callable[[Broadcast, Batch, LocalStep], Update]
"""Acts before local training, after it, or refuses: the shape of a Flower mod."""


@dataclass(frozen=True, kw_only=True)
class RowCount:
    """How many weight rows (neurons) an extraction could read, for Boenisch et al.'s metrics."""

    total: int
    active: int

    def __add__(self, other: RowCount) -> RowCount:
        return RowCount(total=self.total + other.total, active=self.active + other.active)


@dataclass(frozen=True, kw_only=True)
class Reconstruction:
    """What an attack believes the clients' data to be: k candidates, in no particular order."""

    values: Tensor
    """(k, *shape): raw units in the input space (model units if `model_units`), or (k, d) features."""
    space: str = INPUT_SPACE
    """`input`, or the name of the layer whose inputs `values` are."""
    model_units: bool = False
    claimed: Tensor | None = None
    """(k,) bool: the attack vouches for this one as an individual example. None: vouches for none."""
    confidence: Tensor | None = None
    """(k,) in [0, 1], computed without the truth."""
    support: Tensor | None = None
    """(k,) how many gradient rows agreed on this candidate."""
    rows: RowCount | None = None
    source: Tensor | None = None
    """(k,) index of the exchange each candidate was read from: it is compared with the examples behind that
    one and with no others. Read from several exchanges with the same examples, it may name any of them. None
    only where all exchanges are with the same clients, or with `shared`."""
    shared: bool = False
    """All candidates are guesses about each exchange by itself, for they were read from none."""
    unlimited: int = 0
    """Of shared candidates: so many, the first ones, may be given to any number of examples each."""
    label_counts: Tensor | None = None
    """(classes,) inferred number of examples of each class, over all exchanges."""
    words: Tensor | None = None
    """(vocabulary,) bool: tokens that the texts of all exchanges hold, in places that may be unknown."""
    complete: bool | None = None
    """Whether the attack certifies that the layer it read holds nothing else; None: it has no way to tell."""
    if_declared: bool = False
    """Some claims, and the certificate, hold only if the client declared the right number of examples: twice
    as many, in pairs that are nearly alike, may have sent the same."""
    notes: tuple[str, ...] = ()
    """Plain sentences for the report: which layer was read, why something stalled."""

    def __len__(self) -> int:
        return len(self.values)

    def with_notes(self, *notes: str) -> Reconstruction:
        return replace(self, notes=(*self.notes, *notes))


class Verdict(StrEnum):
    """What is said about a received model; a single detector is silent (clean) or alarmed."""

    CLEAN = "clean"
    SUSPICIOUS = "suspicious"
    TRAP = "trap"
    NOT_CHECKED = "not_checked"
    """The guard's alone: no alarm, but there are layers that it could not look at."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One detector's verdict with its evidence in words and the number behind it."""

    verdict: Verdict
    evidence: str
    score: float
    layer: str | None = None


Detector = Callable[[Broadcast], Finding]
"""A client-side check of a received model, run before any private example is touched."""
