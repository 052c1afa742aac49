"""Hand-built layers in which it is known which example activates which neuron."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from seepage.core.types import Batch, Broadcast, Exchange, InputSpec, Knowledge, LocalTraining, Modality
from seepage.protocol import local_update

EXTRA = 24


def patterned(
    patterns: Sequence[Sequence[int]], examples: int, *, classes: int = 4, seed: int = 0
) -> tuple[nn.Sequential, Batch, InputSpec]:
    """A network whose neuron i fires for exactly the examples in patterns[i].

    Example j is 0.5 at its own column j, 0 at the others', and random in EXTRA columns that no neuron reads.
    Neuron i reads the columns of its examples with weight 1 and has bias -0.25.
    """
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.zeros(examples, examples + EXTRA)
    inputs[:, :examples] = 0.5 * torch.eye(examples)
    inputs[:, examples:] = torch.rand(examples, EXTRA, generator=generator)
    labels = torch.randint(classes, (examples,), generator=generator)
    hidden = nn.Linear(examples + EXTRA, len(patterns))
    head = nn.Linear(len(patterns), classes)
    with torch.no_grad():
        hidden.weight.zero_()
        hidden.bias.fill_(-0.25)
        for row, members in enumerate(patterns):
            hidden.weight[row, list(members)] = 1.0
        head.weight.normal_(generator=generator)
        head.bias.normal_(generator=generator)
    spec = InputSpec(modality=Modality.TABULAR, shape=(examples + EXTRA,), num_classes=classes)
    return nn.Sequential(hidden, nn.ReLU(), head), Batch(inputs, labels), spec


def sent(
    model: nn.Module,
    batch: Batch,
    spec: InputSpec,
    *,
    training: LocalTraining | None = None,
    loss: str = "cross_entropy",
    tell_number: bool = True,
    factor: float = 1.0,
) -> tuple[Exchange, Knowledge]:
    """What the server sees and knows; `factor` scales the update as clipping does."""
    training = training or LocalTraining(loss=loss)
    update = local_update(Broadcast(model), batch, training)
    update = replace(
        update,
        tensors={name: t * factor for name, t in update.tensors.items()},
        num_examples=update.num_examples if tell_number else None,
    )
    exchange = Exchange(broadcast=Broadcast(model), update=update, clients=(0,))
    return exchange, Knowledge(input=spec, loss=loss, local=training)


def errors(values: Tensor, truth: Tensor) -> Tensor:
    """(k, n): the largest difference between each candidate and each true example."""
    return (values.flatten(1).unsqueeze(1) - truth.flatten(1).unsqueeze(0)).abs().amax(2)
