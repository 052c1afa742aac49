"""What is to be sent, and the limits: refused where nothing is measured, for a wrong pass is a leak."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from seepage.core.errors import DataError, SpecError
from seepage.core.types import Batch, Update

_ALIKE = 0.5
"""How near an update may come to the weights themselves, of their size. Derived: nearer to them than to
nothing lies no gradient or difference, and new weights after training do."""


def check_limits(threshold: float, budget: float) -> None:
    """A share and a time; NaN is neither, and no share would ever be above it.

    >>> check_limits(float("nan"), 1.0)
    Traceback (most recent call last):
    ...
    seepage.core.errors.SpecError: the threshold must be a share from 0 to 1, not nan.
    """
    if not 0 <= threshold <= 1:
        raise SpecError(f"the threshold must be a share from 0 to 1, not {threshold}.")
    if not budget > 0:
        raise SpecError(f"the budget must be a positive number of seconds, not {budget}.")


def batch_of(given: Any) -> Batch:
    """The private examples: a batch, or inputs and labels as tensors."""
    if not isinstance(given, Batch) and not (isinstance(given, tuple | list) and len(given) == 2):
        raise DataError("the batch must be (inputs, labels), two tensors.")
    mine = given if isinstance(given, Batch) else Batch(*given)
    if not (isinstance(mine.inputs, Tensor) and isinstance(mine.labels, Tensor)):
        raise DataError("the batch must be (inputs, labels), two tensors: convert them with torch.as_tensor.")
    if len(mine.inputs) != len(mine.labels):
        raise DataError(f"{len(mine.inputs)} inputs but {len(mine.labels)} labels: give one label each.")
    return mine


def check_sent(update: Update | Mapping[str, Tensor] | None, model: nn.Module) -> None:
    """The update must be one of this model's, and no new weights in the place of a difference."""
    if update is None:
        return
    tensors = update.tensors if isinstance(update, Update) else update
    weights = {name: p.detach() for name, p in model.named_parameters() if name in tensors}
    if not weights:
        raise DataError(
            "the update has none of the model's parameters: give its tensors by the model's names."
        )
    for name, weight in weights.items():
        if not isinstance(tensors[name], Tensor) or tensors[name].shape != weight.shape:
            shape = tuple(getattr(tensors[name], "shape", ()))
            raise DataError(
                f"the update's '{name}' has shape {shape} where the model has {tuple(weight.shape)}: the "
                "update and the model must belong together."
            )
    apart = sum(float((tensors[name] - weight).double().square().sum()) for name, weight in weights.items())
    size = sum(float(weight.double().square().sum()) for weight in weights.values())
    if size > 0 and apart < _ALIKE**2 * size:
        raise DataError(
            "the update is nearly the model itself, as new weights are: give the gradient, or new weights "
            "minus the received ones."
        )


def foreign(claims: Tensor | None, exact: Tensor) -> str:
    """Why the batch is not the one behind the update; empty where nothing says so.

    claims: (k,) bool, what an attack vouches for; exact: (n,) bool, which of the batch it has.
    """
    if claims is None or not bool(claims.any()) or bool(exact.any()):
        return ""
    return (
        f"it vouches for {int(torch.count_nonzero(claims))} example(s) that are not in the batch: give the "
        "batch that the update was made of."
    )
