"""What an inversion works on: one update, the training it is believed to come from, and the search space."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from seepage.attacks.inversion.embeddings import embedding_name
from seepage.core.errors import DataError
from seepage.core.types import Exchange, InputSpec, Knowledge, LocalTraining, Modality, UpdateKind
from seepage.protocol import local_batches, trainable
from seepage.protocol.widening import model_placement

SPREAD_OF_A_RANGE = 0.25
"""Standard deviation of natural images as a share of their value range: what one normalised unit is. Derived:
CIFAR-10's published ones are 0.247, 0.244 and 0.262."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Everything the parts of an inversion need; nothing in it depends on the clients' examples."""

    model: nn.Module
    known: Knowledge
    exchange: Exchange
    names: tuple[str, ...]
    """Parameters whose updates are matched, in the model's order."""
    observed: tuple[Tensor, ...]
    """Their updates, as sent."""
    training: LocalTraining
    """What the clients ran: granted, or assumed."""
    num_examples: int
    """Over all clients of this update."""
    embedding: str | None
    """Text: the module whose output is searched for, in place of tokens."""
    shape: tuple[int, ...]
    """Of one candidate: the input's, or (length, dim) in the embedding's space."""
    centre: float
    unit: float
    """Typical mean and deviation of a value: steps and starts are measured in units, 1 if normalised."""
    low: Tensor | None
    high: Tensor | None
    """Box of the values in model units; None where the range is not known."""

    @property
    def spec(self) -> InputSpec:
        return self.known.input

    @property
    def clients(self) -> int:
        return max(1, len(self.exchange.clients))

    @property
    def client_sizes(self) -> list[int]:
        """Examples of each client; equal shares, as an aggregate does not tell them."""
        if self.clients == 1:
            return [self.num_examples]
        return [len(part) for part in torch.arange(self.num_examples).tensor_split(self.clients)]

    @property
    def local_steps(self) -> int:
        """Of the client with most of them."""
        return max(len(local_batches(size, self.training)) for size in self.client_sizes)

    @property
    def one_gradient(self) -> bool:
        """The update is the gradient of one batch, whatever the clients behind it.

        A mean over clients weighted by their examples is the gradient of the mean loss over all of them,
        but not where a loss is summed, or where batch statistics are each client's own.
        """
        per_client = self.training.loss.endswith("_sum") or self.training.batch_norm == "train"
        return self.training.algorithm == "fedsgd" and not (per_client and self.clients > 1)

    def project(self, inputs: Tensor) -> Tensor:
        """Into the box of possible values."""
        if self.low is None or self.high is None:
            return inputs
        return torch.minimum(torch.maximum(inputs, self.low), self.high)

    def with_count(self, num_examples: int) -> Problem:
        """The same problem for an assumed number of examples."""
        update = replace(self.exchange.update, num_examples=num_examples)
        return replace(self, num_examples=num_examples, exchange=replace(self.exchange, update=update))


def pose_problem(
    exchange: Exchange, known: Knowledge, *, num_examples: int, assumed: LocalTraining | None = None
) -> Problem:
    """Put together what is known of one update. `assumed`: local training, where it was not granted."""
    if num_examples < 1:
        raise DataError(f"an update of {num_examples} examples cannot be inverted: it needs at least one.")
    model, spec = exchange.broadcast.model, known.input
    device, dtype = model_placement(model)
    embedding = embedding_name(model, spec) if spec.modality is Modality.TEXT else None
    frozen_in_search = None if embedding is None else f"{embedding}.weight"
    names = tuple(name for name in trainable(model) if name != frozen_in_search)
    if not names:
        raise DataError("the model trains nothing but its embedding: there is no update left to match.")
    low, high = _box(known, device, dtype)
    centre, unit, shape = _scale(model, known, embedding)
    return Problem(
        model=model,
        known=known,
        exchange=exchange,
        names=names,
        observed=tuple(exchange.update.tensors[name].detach().to(device, dtype) for name in names),
        training=_training(exchange, known, assumed),
        num_examples=num_examples,
        embedding=embedding,
        shape=shape,
        centre=centre,
        unit=unit,
        low=low,
        high=high,
    )


def _training(exchange: Exchange, known: Knowledge, assumed: LocalTraining | None) -> LocalTraining:
    """What the clients ran. The update itself says whether it is a gradient or a difference of weights."""
    gradient = exchange.update.kind is UpdateKind.GRADIENT
    base = known.local or assumed or LocalTraining()
    return replace(base, algorithm="fedsgd" if gradient else "fedavg", loss=known.loss)


def _box(known: Knowledge, device: torch.device, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    spec = known.input
    if spec.value_range is None or known.normalised or spec.modality is Modality.TEXT:
        return None, None
    ends = [spec.to_model(torch.full(spec.shape, v, device=device, dtype=dtype)) for v in spec.value_range]
    return ends[0], ends[1]


def _scale(model: nn.Module, known: Knowledge, embedding: str | None) -> tuple[float, float, tuple[int, ...]]:
    """Centre and unit of the values, and the shape of one candidate."""
    spec = known.input
    if embedding is not None:
        table = model.get_submodule(embedding).get_parameter("weight").detach()
        return float(table.mean()), float(table.std()), (*spec.shape, table.shape[1])
    if spec.value_range is None or spec.mean is not None or known.normalised:
        return 0.0, 1.0, spec.shape
    low, high = spec.value_range
    return (low + high) / 2, SPREAD_OF_A_RANGE * (high - low), spec.shape
