"""How a pool of examples is spread over clients."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from seepage.core.errors import DataError
from seepage.core.registry import import_thing
from seepage.core.user_code import USER_CODE_ERRORS, reason


def draw_clients(
    labels: Tensor,
    *,
    clients: int,
    examples_each: int,
    scheme: str = "iid",
    alpha: float = 0.5,
    seed: int = 0,
) -> list[Tensor]:
    """Indices of each client's examples; no example is given to two clients.

    `dirichlet`: each client's class shares are drawn from Dir(alpha * class frequencies) and its examples
    follow them (Hsu et al. 2019); small alpha gives clients that hold few classes. `distinct`: no client
    holds two examples of a class. "package.module:function": what that function returns for the same labels,
    clients, examples_each and seed; it may give an example to several clients.

    >>> [len(c) for c in draw_clients(torch.arange(10) % 2, clients=2, examples_each=4)]
    [4, 4]
    """
    if ":" in scheme:
        return _drawn_by(scheme, labels, clients=clients, examples_each=examples_each, seed=seed)
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
    if labels.ndim > 1:
        raise DataError(
            f"the partition '{scheme}' goes by classes, and these examples have numbers in their place: "
            "use partition = 'iid', or a function of your own."
        )
    if scheme == "distinct":
        return _distinct(labels.tolist(), order.tolist(), clients=clients, each=examples_each)
    return _dirichlet(labels.cpu()[order], order, clients=clients, each=examples_each, alpha=alpha, seed=seed)


def _drawn_by(name: str, labels: Tensor, *, clients: int, examples_each: int, seed: int) -> list[Tensor]:
    draw = import_thing(name, DataError, function=True)
    try:
        held = [
            torch.as_tensor(m) for m in draw(labels, clients=clients, examples_each=examples_each, seed=seed)
        ]
        sizes = [mine.numel() for mine in held]
    except USER_CODE_ERRORS as error:
        raise DataError(
            f"partition '{name}' failed ({type(error).__name__}: {reason(error)}): it is called as "
            "function(labels, clients=, examples_each=, seed=) and returns each client's indices."
        ) from error
    if sizes != [examples_each] * clients:
        raise DataError(
            f"partition '{name}' gave {sizes[:5]} examples to its clients: it must "
            f"give {examples_each} to each of {clients}."
        )
    for mine in held:
        whole = (
            mine.ndim == 1
            and not (mine.is_floating_point() or mine.is_complex())
            and mine.dtype != torch.bool
        )
        if not whole or int(mine.min()) < 0 or int(mine.max()) >= len(labels):
            raise DataError(
                f"partition '{name}' must give each client a list of indices, whole numbers from 0 to "
                f"{len(labels) - 1}."
            )
    return held


def _distinct(labels: list[int], order: list[int], *, clients: int, each: int) -> list[Tensor]:
    result: list[Tensor] = []
    for _ in range(clients):
        mine: dict[int, int] = {}
        for index in order:
            if len(mine) < each:
                mine.setdefault(labels[index], index)
        if len(mine) < each:
            raise DataError(
                f"partition 'distinct' finds only {len(mine)} classes for {each} examples of a client: lower "
                "batch_size or clients, or give more data."
            )
        taken = set(mine.values())
        order = [index for index in order if index not in taken]
        result.append(torch.tensor(list(mine.values())))
    return result


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
