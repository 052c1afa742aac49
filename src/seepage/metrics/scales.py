"""The unit an error is measured in: the data's range for pictures, a column's spread for tables.

A value range that the workload knows is taken as it is. Where it knows none, the true examples' own range or
spread stands in; a constant (spread 0, e.g. a single row) is measured by its magnitude, and zeros by 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.errors import DataError
from seepage.metrics.pairs import wide
from seepage.types import INPUT_SPACE, InputSpec, Modality


def _nonzero(spread: Tensor, magnitude: Tensor) -> Tensor:
    spread = torch.where(spread > 0, spread, magnitude)
    return torch.where(spread > 0, spread, torch.ones_like(spread))


def own_range(truth: Tensor) -> float:
    """Highest minus lowest true value.

    >>> own_range(torch.tensor([[1.0, 4.0]])), own_range(torch.tensor([[3.0, 3.0]]))
    (3.0, 3.0)
    """
    if truth.numel() == 0:
        raise DataError("the data range of no examples is unknown: give the value range in the input spec.")
    low, high = torch.aminmax(wide(truth))
    return float(_nonzero(high - low, torch.maximum(low.abs(), high.abs())))


def data_range(spec: InputSpec, truth: Tensor) -> float:
    """Width of the spec's value range; without one, the true examples' own.

    >>> data_range(InputSpec(modality=Modality.IMAGE, shape=(1, 2, 2), num_classes=2), torch.rand(1, 1, 2, 2))
    1.0
    """
    if spec.value_range is None:
        return own_range(truth)
    low, high = spec.value_range
    if not high > low:
        raise DataError(
            f"the value range {spec.value_range} is empty: give the lowest and the highest value."
        )
    return float(high - low)


def column_spread(spec: InputSpec, truth: Tensor) -> Tensor:
    """One spread per column of a table: the spec's std, else the standard deviation of the true rows.

    >>> spec = InputSpec(modality=Modality.TABULAR, shape=(2,), num_classes=2, value_range=None)
    >>> column_spread(spec, torch.tensor([[0.0, 7.0], [2.0, 7.0]]))
    tensor([1., 7.], dtype=torch.float64)
    """
    if len(truth) == 0:
        raise DataError("the column spread of no rows is unknown: give each column's std in the input spec.")
    rows = wide(truth)
    if spec.std is None:
        spread = rows.std(0, correction=0)
    else:
        std = torch.tensor(spec.std, dtype=rows.dtype, device=rows.device)
        spread = std.reshape(-1, *(1,) * (truth.ndim - 2)).expand(truth.shape[1:])
    return _nonzero(spread, rows.abs().amax(0))


def error_unit(spec: InputSpec, truth: Tensor, *, space: str = INPUT_SPACE) -> float | Tensor:
    """The `data_range` that an exact match of these examples is judged by.

    Features of a layer: their own range. Pictures: the data range. Tables without a value range: a spread per
    column, for one wide column would hide the errors of all the others. Token ids: 1, they are equal or not.

    >>> error_unit(InputSpec(modality=Modality.TEXT, shape=(3,), num_classes=2), torch.tensor([[5, 2, 9]]))
    1.0
    """
    if space != INPUT_SPACE:
        return own_range(truth)
    if spec.modality is Modality.TEXT:
        return 1.0
    if spec.modality is Modality.TABULAR and spec.value_range is None:
        return column_spread(spec, truth)
    return data_range(spec, truth)
