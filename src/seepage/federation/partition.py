"""How a pool of examples is spread over clients."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from seepage.errors import DataError

Scheme = Literal["iid", "dirichlet"]


def draw_clients(
    labels: Tensor,
    *,
    clients: int,
    examples_each: int,
    scheme: Scheme = "iid",
    alpha: float = 0.5,
    seed: int = 0,
) -> list[Tensor]:
    """Indices of each client's examples; no example is given to two clients.

    `dirichlet`: each client's class shares are drawn from Dir(alpha * class frequencies) and its examples
    follow them (Hsu et al. 2019); small alpha gives clients that hold few classes.

    >>> [len(c) for c in draw_clients(torch.arange(10) % 2, clients=2, examples_each=4)]
    [4, 4]
    """
    needed = clients * examples_each
    if needed > len(labels):
        raise DataError(
            f"{clients} client(s) with {examples_each} example(s) each need {needed}, but only {len(labels)} "
            "are there: lower batch_size or clients, or give more data."
        )
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator)
    if scheme == "iid":
        return list(order[:needed].split(examples_each))
    return _dirichlet(labels.cpu()[order], order, clients=clients, each=examples_each, alpha=alpha, seed=seed)


def _dirichlet(
    labels: Tensor, order: Tensor, *, clients: int, each: int, alpha: float, seed: int
) -> list[Tensor]:
    if not alpha > 0:
        raise DataError(f"dirichlet_alpha must be positive, not {alpha}: 0.5 is common, 100 is nearly IID.")
    rng = np.random.default_rng(seed)
    classes, frequency = np.unique(labels.numpy(), return_counts=True)
    pools = [order[labels == int(c)].tolist() for c in classes]
    result: list[Tensor] = []
    for _ in range(clients):
        shares = rng.dirichlet(alpha * frequency / frequency.sum())
        mine: list[int] = []
        while len(mine) < each:
            left = np.array([len(pool) for pool in pools], dtype=float)
            weights = shares * (left > 0)
            # All classes this client likes are used up: fall back to what is left.
            weights = weights if weights.sum() > 0 else left
            mine.append(pools[rng.choice(len(pools), p=weights / weights.sum())].pop())
        result.append(torch.tensor(mine))
    return result
