"""What becomes of several clients' updates before the server's attack can look at them.

A sum is folded as its updates come, so that ten thousand clients need no more memory than one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from seepage.core.errors import DataError
from seepage.core.registry import lookup
from seepage.core.types import Update

AGGREGATIONS = {
    "per_client": "the server keeps each update",
    "mean": "FedAvg's average, weighted by examples",
    "sum": "a plain sum, which the server divides by the number of clients",
    "secure_sum": "FedAvg's average, and nothing else ever reaches the server",
    "median": "coordinate-wise",
}


class Fold:
    """The aggregate of updates that come one after another.

    sizes: how many examples each of them is going to name; with None among them all weigh the same.

    >>> from seepage.core.types import UpdateKind
    >>> fold = Fold("mean", [1, 3])
    >>> for value, n in ((0.0, 1), (4.0, 3)):
    ...     fold.add(Update(kind=UpdateKind.GRADIENT, tensors={"w": torch.tensor([value])}, num_examples=n))
    >>> fold.result().tensors["w"].item()
    3.0
    """

    def __init__(self, rule: str, sizes: Sequence[int | None]) -> None:
        lookup(AGGREGATIONS, rule, "aggregation")
        if rule == "per_client" or not sizes:
            raise DataError(f"'{rule}' does not combine {len(sizes)} updates into one.")
        self._rule, self._number = rule, len(sizes)
        known = [size for size in sizes if size is not None]
        self._expected = sum(known) if len(known) == len(sizes) and rule != "sum" else 0
        self._first: Update | None = None
        self._named: list[int | None] = []
        self._tensors: dict[str, Tensor] = {}
        self._buffers: dict[str, Tensor] | None = {}
        self._kept: list[Update] = []

    def add(self, update: Update) -> None:
        """Take one more. Only a median has to keep it."""
        if self._first is None:
            self._first = update
            if update.num_examples is None:
                self._expected = 0
        self._named.append(update.num_examples)
        if self._rule == "median":
            self._kept.append(update)
        else:
            _add(self._tensors, update.tensors, self._weight(update))
        if update.buffers is None:
            self._buffers = None
        elif self._buffers is not None:
            _add(self._buffers, update.buffers, self._weight(update))

    def _weight(self, update: Update) -> float:
        return (update.num_examples or 0) / self._expected if self._expected else 1 / self._number

    def result(self) -> Update:
        """The aggregate of those that came."""
        assert self._first is not None
        known = [size for size in self._named if size is not None]
        total = sum(known) if len(known) == len(self._named) else None
        if self._expected and total is None:
            raise DataError(
                "some clients name the number of their examples and others do not, so their mean has no "
                "weights: let all of them name it, or none."
            )
        if self._expected and total and total != self._expected:  # some named another number
            for tensor in (*self._tensors.values(), *(self._buffers or {}).values()):
                if tensor.is_floating_point():
                    tensor.mul_(self._expected / total)
        tensors = self._tensors if self._rule != "median" else _median(self._kept)
        return Update(kind=self._first.kind, tensors=tensors, num_examples=total, buffers=self._buffers)


def _add(total: dict[str, Tensor], tensors: Mapping[str, Tensor], weight: float) -> None:
    """Counters (num_batches_tracked) are integers and cannot be averaged: the first client's is kept."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            total.setdefault(name, tensor)
        elif name not in total:
            total[name] = torch.zeros_like(tensor).add_(tensor, alpha=weight)
        else:
            total[name].add_(tensor, alpha=weight)


def aggregate(updates: Iterable[Update], rule: str, *, sizes: Sequence[int | None] | None = None) -> Update:
    """Combine clients' updates by `mean`, `sum`, `secure_sum` or `median`.

    sizes: as in `Fold`; with them the updates may come from an iterator, and none is kept.

    >>> from seepage.core.types import UpdateKind
    >>> one, two = (Update(kind=UpdateKind.GRADIENT, tensors={"w": torch.tensor([v])}, num_examples=n)
    ...             for v, n in ((0.0, 1), (4.0, 3)))
    >>> aggregate([one, two], "mean").tensors["w"].item()
    3.0
    """
    if sizes is None:
        updates = list(updates)
        sizes = [update.num_examples for update in updates]
    fold = Fold(rule, sizes)
    for update in updates:
        fold.add(update)
    return fold.result()


def _median(updates: Sequence[Update]) -> dict[str, Tensor]:
    """The mean of the two middle values for an even number of clients (as numpy does)."""
    middle = {}
    for name in updates[0].tensors:
        ordered = torch.stack([u.tensors[name] for u in updates]).sort(dim=0).values
        middle[name] = (ordered[(len(updates) - 1) // 2] + ordered[len(updates) // 2]) / 2
    return middle
