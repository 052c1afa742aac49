"""What becomes of several clients' updates before the server's attack can look at them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from seepage.errors import DataError
from seepage.registry import lookup
from seepage.types import Update

Weights = list[float]


def _mean(stacked: Sequence[Tensor], weights: Weights) -> Tensor:
    total = torch.zeros_like(stacked[0])
    for tensor, weight in zip(stacked, weights, strict=True):
        total.add_(tensor, alpha=weight)  # one accumulator: no stack of all clients' gradients
    return total


def _median(stacked: Sequence[Tensor], weights: Weights) -> Tensor:
    """Coordinate-wise; the mean of the two middle values for an even number of clients (as numpy does)."""
    ordered = torch.stack(list(stacked)).sort(dim=0).values
    n = len(stacked)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2


AGGREGATIONS: dict[str, Callable[[Sequence[Tensor], Weights], Tensor] | None] = {
    "per_client": None,
    "mean": _mean,
    "sum": _mean,
    "secure_sum": _mean,
    "median": _median,
}
"""per_client: the server keeps each update. mean: FedAvg's average, weighted by examples. sum: a plain sum,
which the server divides by the number of clients. secure_sum: FedAvg's average, and nothing else ever reaches
the server. median: coordinate-wise."""


def aggregate(updates: Sequence[Update], rule: str) -> Update:
    """Combine clients' updates by `mean`, `sum`, `secure_sum` or `median`.

    >>> from seepage.types import UpdateKind
    >>> one, two = (Update(kind=UpdateKind.GRADIENT, tensors={"w": torch.tensor([v])}, num_examples=n)
    ...             for v, n in ((0.0, 1), (4.0, 3)))
    >>> aggregate([one, two], "mean").tensors["w"].item()
    3.0
    """
    combine = lookup(AGGREGATIONS, rule, "aggregation")
    if combine is None or not updates:
        raise DataError(f"'{rule}' does not combine {len(updates)} updates into one.")
    counts = [u.num_examples for u in updates]
    known = [c for c in counts if c is not None]
    total = sum(known) if len(known) == len(counts) else None
    by_examples = total is not None and rule != "sum"
    weights = [c / total for c in known] if by_examples and total else [1 / len(updates)] * len(updates)
    tensors = {name: combine([u.tensors[name] for u in updates], weights) for name in updates[0].tensors}
    return Update(
        kind=updates[0].kind,
        tensors=tensors,
        num_examples=total,
        buffers=_aggregate_buffers(updates, weights),
    )


def _aggregate_buffers(updates: Sequence[Update], weights: Weights) -> dict[str, Tensor] | None:
    sent = [u.buffers for u in updates if u.buffers is not None]
    if len(sent) < len(updates):
        return None
    # Counters (num_batches_tracked) are integers and cannot be averaged: the first client's is kept.
    return {
        name: _mean([b[name] for b in sent], weights) if first.is_floating_point() else first
        for name, first in sent[0].items()
    }
