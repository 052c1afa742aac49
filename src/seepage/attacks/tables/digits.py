"""How finely the numbers of a table are written: whole numbers, or decimals, as seen from the readings."""

from __future__ import annotations

from torch import Tensor

_MOST_DECIMALS = 4
"""Decimals that columns are written with, at most. Derived: float32 has seven digits, and with more decimals
none is left for numbers of a thousand and more."""
_ON = 0.05
"""Share of a step within which a reading counts as on it. Derived: one in ten lies there by chance."""
_ENOUGH = 6
"""Different readings that must lie on steps. Derived: 0.1 ** 6 by chance."""


def written(column: Tensor, error: Tensor, *, whole: bool) -> Tensor | None:
    """The readings (k,) of one column as they must have been written; None where they could be anything.

    error: (k,) what rounding may have added. whole: the column counts things, as the schema says.

    >>> import torch
    >>> seen = [7.250003, 71.283299, 7.925002, 53.1, 8.05, 8.4583, 51.862504]
    >>> read = torch.tensor(seen, dtype=torch.double)
    >>> written(read, torch.full((7,), 3e-6), whole=False).tolist()
    [7.25, 71.2833, 7.925, 53.1, 8.05, 8.4583, 51.8625]
    """
    if whole:
        return column.round()
    for decimals in range(_MOST_DECIMALS + 1):
        steps = column * 10**decimals
        # where rounding may have moved a reading by a step, nearness says nothing
        if bool((error * 10**decimals > _ON).any()):
            return None
        near = (steps - steps.round()).abs() <= _ON
        if bool(near.all()) and len(steps.round().unique()) >= _ENOUGH:
            exact: Tensor = steps.round() / 10**decimals
            return exact
    return None
