"""The commonest value of each column, as far as a server knows it: what an answer is not to be below."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.core.types import Knowledge

SPARSE = 2.0
"""Spread over mean from which a column's commonest value is taken to be 0: a column that is 0 in a share p of
its rows, and elsewhere some number, has sqrt(p / (1 - p)), which is 2 for four fifths. A choice: four
fifths."""


@dataclass(frozen=True)
class Usual:
    """Of each of the table's D encoded columns."""

    shares: Tensor
    """(D,) how common a category, or the number beside it, is."""
    numbers: Tensor
    """(D,) the commonest number of a column that is no category."""


def usual_values(known: Knowledge) -> Usual | None:
    """From public examples, else from the columns' mean and spread; None where neither is known.

    Without examples only the commonest value of a column whose spread is a multiple of its mean is guessed:
    0. At least a share mean^2 / (mean^2 + spread^2) of such a column is not 0 (Paley and Zygmund 1932), just
    so many if those are alike; the rest stands for the share of zeros. Other numbers have a share of 0, so
    that nothing gives way to them.

    >>> from seepage.core.types import InputSpec
    >>> spec = InputSpec(modality="tabular", shape=(2,), num_classes=2, mean=(10.0, 40.0), std=(30.0, 9.0))
    >>> found = usual_values(Knowledge(input=spec))
    >>> found.numbers.tolist(), [round(share, 3) for share in found.shares.tolist()]
    ([0.0, 40.0], [0.9, 0.0])
    """
    spec = known.input
    if known.auxiliary is not None and len(known.auxiliary):
        rows = spec.to_raw(known.auxiliary.inputs).double()
        numbers, shares = rows.mode(dim=0).values, rows.mean(dim=0)
        inside = {column for group in spec.categories for column in group}
        single = [column for column in range(rows.shape[1]) if column not in inside]
        shares[single] = (rows[:, single] == numbers[single]).double().mean(dim=0)
        return Usual(shares, numbers)
    if spec.mean is None or spec.std is None:
        return None
    mean = torch.tensor(spec.mean, dtype=torch.float64)
    spread = torch.tensor(spec.std, dtype=torch.float64)
    inside = {column for group in spec.categories for column in group}
    category = torch.tensor([column in inside for column in range(len(mean))])
    sparse = ~category & (spread >= SPARSE * mean.abs())
    zeros = spread**2 / (mean**2 + spread**2)
    shares = torch.where(sparse, zeros, torch.where(category, mean, torch.zeros_like(mean)))
    return Usual(shares, torch.where(sparse, torch.zeros_like(mean), mean))
