"""Who holds what in the tables whose clients are not drawn one by one: partitions of an audit's protocol."""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.core.errors import DataError
from seepage.protocol import draw_clients

MEMBERS = 10_000
"""Pictures that a network is trained on in Table 4 of Boenisch et al., where there are so many."""


def users(labels: Tensor, *, clients: int, examples_each: int, seed: int) -> list[Tensor]:
    """Every client draws from all of the data, as if it were alone: user u as the run of seed u does."""
    return [
        draw_clients(labels, clients=1, examples_each=examples_each, seed=user)[0] for user in range(clients)
    ]


def members(labels: Tensor, *, clients: int, examples_each: int, seed: int) -> list[Tensor]:
    """Clients hold what the network was trained on."""
    trained_on = training_set(labels, seed)
    drawn = draw_clients(labels[trained_on], clients=clients, examples_each=examples_each, seed=seed)
    return [trained_on[index] for index in drawn]


def training_set(labels: Tensor, seed: int) -> Tensor:
    """What a network of this seed is trained on."""
    (drawn,) = draw_clients(labels, clients=1, examples_each=min(MEMBERS, len(labels)), seed=seed)
    return drawn


def one_of_its_class(labels: Tensor, *, clients: int, examples_each: int, seed: int) -> list[Tensor]:
    """Each client's first example is the only one of its class, which is the seed modulo their number."""
    generator = torch.Generator().manual_seed(seed)
    target = seed % int(labels.max() + 1)
    own, others = (labels == target).nonzero().flatten(), (labels != target).nonzero().flatten()
    return [
        torch.cat([draw(own, 1, generator), draw(others, examples_each - 1, generator)])
        for _ in range(clients)
    ]


def draw(pool: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """`count` different members of `pool`."""
    if count > len(pool):
        raise DataError(
            f"{count} different examples of one class are needed, but there are {len(pool)}: take smaller "
            "batches or more data."
        )
    return pool[torch.randperm(len(pool), generator=generator)[:count]]


def one_class(labels: Tensor, *, clients: int, examples_each: int, seed: int) -> list[Tensor]:
    """All examples of one class, which is the seed modulo their number."""
    generator = torch.Generator().manual_seed(seed)
    members = (labels == seed % int(labels.max() + 1)).nonzero().flatten()
    return [draw(members, examples_each, generator) for _ in range(clients)]
