"""The unit an error is measured in, the range of pictures or a column's spread, and the rule of exactness.

What the workload knows is taken as it is: a picture's value range, a column's spread over all data at hand.
Where it knows none, the true examples' own range or spread stands in; a constant (spread 0, e.g. a single
row) is measured by its magnitude, and zeros by 1. A table has no range: its columns share no unit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.core.errors import DataError
from seepage.core.types import INPUT_SPACE, ColumnKind, InputSpec, Modality
from seepage.metrics.exact import EXACT_TOLERANCE, ExactRule
from seepage.metrics.pairs import wide


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
    """One spread per column of a table: the spec's, else the standard deviation of the true rows.

    >>> spec = InputSpec(modality=Modality.TABULAR, shape=(2,), num_classes=2, value_range=None)
    >>> column_spread(spec, torch.tensor([[0.0, 7.0], [2.0, 7.0]]))
    tensor([1., 7.], dtype=torch.float64)
    """
    if len(truth) == 0:
        raise DataError("the column spread of no rows is unknown: give it in the input spec.")
    rows = wide(truth)
    if spec.spread is None:
        spread = rows.std(0, correction=0)
    else:
        spread = torch.tensor(spec.spread, dtype=rows.dtype, device=rows.device)
    return _nonzero(spread, rows.abs().amax(0))


def error_unit(spec: InputSpec, truth: Tensor, *, space: str = INPUT_SPACE) -> float | Tensor:
    """The unit that errors of these examples are counted in.

    Features of a layer: their own range. Pictures: the data range. Tables: a spread per column, for one wide
    column would hide the errors of all the others. Token ids: 1, they are equal or not.

    >>> error_unit(InputSpec(modality=Modality.TEXT, shape=(3,), num_classes=2), torch.tensor([[5, 2, 9]]))
    1.0
    """
    if space != INPUT_SPACE:
        return own_range(truth)
    if spec.modality is Modality.TEXT:
        return 1.0
    if spec.modality is Modality.TABULAR:
        return column_spread(spec, truth)
    return data_range(spec, truth)


def exact_rule(
    spec: InputSpec, truth: Tensor, *, space: str = INPUT_SPACE, tolerance: float = EXACT_TOLERANCE
) -> ExactRule:
    """When examples of this kind are the same. Columns of a table that count or name something must be equal
    after rounding; every other value lies within `tolerance` of its `error_unit`.

    >>> spec = InputSpec(
    ...     modality=Modality.TABULAR, shape=(2,), num_classes=2, integer=(0,), spread=(9.0, 200.0)
    ... )
    >>> rule = exact_rule(spec, torch.tensor([[41.0, 32156.0]]))
    >>> rule.values(torch.tensor([[40.0, 32156.1]]), torch.tensor([[41.0, 32156.0]]))
    tensor([[False,  True]])
    """
    whole = None
    if space == INPUT_SPACE and spec.modality is Modality.TABULAR:
        whole = torch.tensor([kind is not ColumnKind.REAL for kind in spec.kinds])
    return ExactRule(unit=error_unit(spec, truth, space=space), whole=whole, tolerance=tolerance)
