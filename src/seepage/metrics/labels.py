"""How well the labels of a batch were inferred, as a multiset: the server learns counts, not an order."""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.core.errors import DataError


def _check(inferred: Tensor, true: Tensor) -> None:
    if inferred.ndim != 1 or inferred.shape != true.shape:
        raise DataError(
            f"label counts have shapes {tuple(inferred.shape)} and {tuple(true.shape)}: "
            "both must be (classes,)."
        )
    for counts, whose in ((inferred, "inferred"), (true, "true")):
        if not bool((torch.isfinite(counts) & (counts >= 0)).all()):
            raise DataError(f"{whose} label counts must be zero or more: clip what inference returned.")
    if not bool(true.sum() > 0):
        raise DataError("the true label counts are all zero: there is no batch to score labels of.")


def label_multiset_accuracy(inferred: Tensor, true: Tensor) -> float:
    """Labels found, counted with their multiplicity: sum_c min(a_c, b_c) / max(sum a, sum b).

    Dividing by the larger total makes claiming too many labels cost as much as missing some.

    >>> label_multiset_accuracy(torch.tensor([2, 1, 0]), torch.tensor([1, 1, 2]))
    0.5
    """
    _check(inferred, true)
    true = true.to(inferred.device)
    found = float(torch.minimum(inferred, true).sum())
    return found / max(float(inferred.sum()), float(true.sum()))
