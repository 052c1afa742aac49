"""Confidence intervals over seeds and examples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seepage.log.record import Record


class Interval(Record):
    """A mean with its 95 % bootstrap interval. `groups` batches held `count` values in all."""

    mean: float
    low: float
    high: float
    count: int
    groups: int


def bootstrap(groups: Sequence[Sequence[float]], *, resamples: int = 2000, seed: int = 0) -> Interval:
    """Mean over all values, with a two-level percentile bootstrap: batches first, then examples in them.

    Images of one batch went through the same update, so they are not independent: resampling whole batches
    keeps that dependence in the interval. With a single batch only the second level is left, and the
    interval says nothing about other batches (`groups` is 1; the report says so).

    >>> bootstrap([[1.0, 1.0], [1.0]]).low
    1.0
    """
    arrays = [np.asarray(g, dtype=float) for g in groups if len(g)]
    if not arrays:
        raise ValueError("bootstrap needs at least one value")
    rng = np.random.default_rng(seed)
    n = len(arrays)
    # For every group, `resamples` resampled sums; then groups are drawn and their sums pooled. Each place
    # takes the sums in an order of its own: a group drawn twice must not bring the same examples twice.
    sums = np.stack([a[rng.integers(len(a), size=(resamples, len(a)))].sum(axis=1) for a in arrays])  # (n, r)
    sizes = np.array([len(a) for a in arrays])
    drawn = rng.integers(n, size=(resamples, n)) if n > 1 else np.zeros((resamples, 1), dtype=int)
    column = rng.permuted(np.tile(np.arange(resamples)[:, None], (1, n)), axis=0)  # (r, n)
    totals = sums[drawn, column].sum(axis=1)
    means = totals / sizes[drawn].sum(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    values = np.concatenate(arrays)
    return Interval(mean=float(values.mean()), low=float(low), high=float(high), count=len(values), groups=n)
