"""Which examples of a cell can be looked at: all of them, or of a large cell the most and the least exposed
and some that were drawn."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

KEPT_BYTES = 2**25
"""Of drawn examples whose values a cell keeps; those of 10,000 pictures of 28 x 28 still fit. Cost: memory
and disk, twice in every cell."""
EXTREMES = 16
"""Kept of the most and of the least exposed examples, more than a gallery has room for."""


def drawn(examples: int, bytes_each: int) -> list[int]:
    """As many of the examples as fit, ascending, by their number alone: nobody has looked at them, and they
    are always the same ones.

    >>> drawn(3, 8), len(drawn(10**6, 2**20)), drawn(999, 2**18) == drawn(999, 2**18)
    ([0, 1, 2], 32, True)
    """
    count = min(examples, KEPT_BYTES // max(1, bytes_each))
    return sorted(random.Random(examples).sample(range(examples), count))


def most_exposed_first(
    exact: Sequence[bool] | NDArray[np.bool_],
    recovered: Sequence[bool] | NDArray[np.bool_],
    scores: Sequence[float] | NDArray[np.float64],
    *,
    higher_leaks: bool,
) -> NDArray[np.intp]:
    """The order of examples by what came out of them: exact copies, then by the score that leads, and last
    those that nothing was recovered of. Equal ones stay in their order.

    >>> order = most_exposed_first([0, 1, 0], [1, 1, 0], [9.0, 40.0, 11.0], higher_leaks=True)
    >>> order.tolist()
    [1, 0, 2]
    """
    leak = np.asarray(scores, np.float64) * (1 if higher_leaks else -1)
    leak = np.where(np.isnan(leak), -np.inf, leak)
    return np.lexsort((-leak, ~np.asarray(recovered, np.bool_), ~np.asarray(exact, np.bool_)))
