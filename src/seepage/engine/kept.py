"""What of the matched candidates stays in memory and in the record, chosen while they come."""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.core.metric import MetricFacts
from seepage.names.metrics import leading
from seepage.record.shown import EXTREMES, drawn, most_exposed_first


class Kept:
    """The values of all examples, or of as many as fit: some that were drawn before anything was seen of
    them, and of those seen so far the most and the least exposed."""

    def __init__(self, examples: int, modality: str) -> None:
        self._examples, self._modality = examples, modality
        self._drawn = torch.zeros(0, dtype=torch.long)
        self._values: Tensor | None = None
        self._extremes: _Extremes | None = None

    def add(self, rows: Tensor, values: Tensor, *, recovered: Tensor, scores: dict[str, Tensor]) -> None:
        """The candidates (m, ...) matched with these rows of the truth, and what they scored."""
        if self._values is None:
            self._drawn = torch.tensor(drawn(self._examples, values[:1].nbytes), dtype=torch.long)
            self._values = values.new_empty(len(self._drawn), *values.shape[1:])
            if len(self._drawn) < self._examples:
                self._extremes = _Extremes(leading(scores, self._modality))
        # (m,) where each row stands among those drawn, if it does
        place = torch.searchsorted(self._drawn, rows).clamp(max=max(0, len(self._drawn) - 1))
        mine = self._drawn[place] == rows if len(self._drawn) else torch.zeros_like(rows, dtype=torch.bool)
        self._values[place[mine]] = values[mine]
        if self._extremes is not None:
            self._extremes.add(rows, values, recovered, scores)

    def done(self) -> tuple[Tensor, Tensor]:
        """The rows (k,) that are kept, ascending, and their values (k, ...)."""
        assert self._values is not None
        if self._extremes is None:
            return self._drawn, self._values
        rows = torch.cat([self._drawn, self._extremes.rows]).unique()
        values = self._values.new_empty(len(rows), *self._values.shape[1:])  # the only copy of them
        values[torch.searchsorted(rows, self._drawn)] = self._values
        values[torch.searchsorted(rows, self._extremes.rows)] = self._extremes.values
        return rows, values


class _Extremes:
    """The most and the least exposed examples so far."""

    def __init__(self, leads: MetricFacts) -> None:
        self._leads = leads
        self._columns: tuple[Tensor, ...] = ()

    def add(self, rows: Tensor, values: Tensor, recovered: Tensor, scores: dict[str, Tensor]) -> None:
        columns: tuple[Tensor, ...] = (
            rows,
            values,
            scores["exact"] == 1.0,
            recovered,
            scores[self._leads.name],
        )
        if self._columns:
            columns = tuple(torch.cat(both) for both in zip(self._columns, columns, strict=True))
        by_row = columns[0].argsort()  # equal ones in the order of their rows, however they came
        judged = [column[by_row].numpy() for column in columns[2:]]
        order = by_row[torch.from_numpy(most_exposed_first(*judged, higher_leaks=self._leads.higher_leaks))]
        kept = torch.cat([order[:EXTREMES], order[-EXTREMES:]]).unique()
        self._columns = tuple(column[kept] for column in columns)

    @property
    def rows(self) -> Tensor:
        return self._columns[0]

    @property
    def values(self) -> Tensor:
        return self._columns[1]
