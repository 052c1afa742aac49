"""A figure with its 95 % interval: the only error bar of audits, studies and paper tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from seepage.core.metric import RANGES, SHARE
from seepage.record.intervals import mean_interval, share_interval
from seepage.record.refs import Record


class Estimate(Record):
    """A mean over `n` values in `batches` batches, with the 95 % interval of what further batches would give.

    Of a single batch nothing is known about others: its interval is about further examples of that batch.
    A single value has the whole range of its unit for an interval, for nothing is known about others at all.
    Where some score is NaN or infinite, so is the value, and the ends are NaN: nothing compares with them.
    """

    value: float
    low: float
    high: float
    n: int
    unit: str = ""
    batches: int = 1

    @classmethod
    def of(
        cls, batches: Sequence[Sequence[float]], unit: str = "", reach: tuple[float, float] | None = None
    ) -> Estimate:
        """From the values of each batch; a batch without values does not count. No end leaves `reach`, which
        is the unit's unless it is given.

        Shares that are all 0 or 1 are counted (`of_counts`), any other values are averaged.

        >>> Estimate.of([[0.0] * 20] * 3, "share").high > 0.05
        True
        >>> found = Estimate.of([[7.9, 8.1], [8.3, 8.0], [8.2, 8.4]], "dB")
        >>> print(f"{found.value:.2f} dB, {found.low:.2f} to {found.high:.2f}")
        8.15 dB, 7.78 to 8.52
        """
        arrays = [np.asarray(batch, dtype=float) for batch in batches if len(batch)]
        if not arrays:
            raise ValueError("an estimate needs at least one value")
        values = np.concatenate(arrays)
        if unit == SHARE and np.isin(values, (0.0, 1.0)).all():
            return cls.of_counts([(int(a.sum()), len(a)) for a in arrays])
        with np.errstate(invalid="ignore"):
            value = float(values.mean())
        least, most = reach or RANGES.get(unit, RANGES[""])
        if not math.isfinite(value):
            low = high = math.nan
        else:
            low, high = mean_interval(arrays) if len(values) > 1 else (least, most)
            # the value stays inside its interval even where a foreign log has one outside of the range
            low, high = min(value, max(least, low)), max(value, min(most, high))
        return cls(value=value, low=low, high=high, n=len(values), unit=unit, batches=len(arrays))

    @classmethod
    def of_counts(cls, counts: Sequence[tuple[int, int]]) -> Estimate:
        """A share: `k` of `m` in each batch. None of n has an upper end above 0, all of n a lower below 1.

        >>> found = Estimate.of_counts([(0, 60)])
        >>> found.value, found.low, round(found.high, 3), found.n
        (0.0, 0.0, 0.06, 60)
        """
        filled = [(k, m) for k, m in counts if m]
        if not filled:
            raise ValueError("an estimate needs at least one value")
        low, high = share_interval([k for k, _ in filled], [m for _, m in filled])
        n = sum(m for _, m in filled)
        value = sum(k for k, _ in filled) / n
        return cls(value=value, low=low, high=high, n=n, unit=SHARE, batches=len(filled))
