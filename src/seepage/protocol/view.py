"""What a server keeps of a round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch

from seepage.core.types import Batch, Broadcast, Exchange, Grant, Update
from seepage.protocol.aggregation import aggregate
from seepage.protocol.secure import groups_with_fakes, without_fakes
from seepage.protocol.threat import ThreatModel, effective_grants, sees_each_update


@dataclass(frozen=True)
class View:
    """What this server keeps of a round: single updates or sums, minus what it is not told."""

    threat: ThreatModel
    aggregation: str
    fakes: int
    minimum_honest: int

    def exchanges(
        self,
        broadcast: Broadcast,
        updates: Iterator[Update],
        selected: Sequence[int],
        batches: Sequence[Batch],
        secret: Any,
    ) -> Iterator[Exchange]:
        """One after another. `updates`: of the selected clients in their order; no more of them are kept than
        one sum has to keep."""
        grants = effective_grants(self.threat, self.aggregation)
        for clients in self.groups(selected):
            update = self._seen(islice(updates, len(clients)), [len(batches[c]) for c in clients])
            labels = torch.cat([batches[c].labels for c in clients])
            yield Exchange(
                broadcast=broadcast,
                update=replace(
                    update,
                    num_examples=update.num_examples if Grant.BATCH_SIZE in grants else None,
                    buffers=update.buffers if Grant.BUFFERS in grants else None,
                ),
                clients=clients,
                labels=labels if Grant.LABELS in grants else None,
                secret=secret,
            )

    def groups(self, selected: Sequence[int]) -> list[tuple[int, ...]]:
        """Which clients share an exchange: fakes let the server ask for several sums."""
        if sees_each_update(self.threat, self.aggregation):
            return [(c,) for c in selected]
        if self.aggregation == "secure_sum" and self.fakes:
            return groups_with_fakes(selected, self.minimum_honest)
        return [tuple(selected)]

    def _seen(self, updates: Iterator[Update], sizes: list[int]) -> Update:
        if sees_each_update(self.threat, self.aggregation):
            return next(updates)
        if self.aggregation != "secure_sum":
            return aggregate(updates, self.aggregation, sizes=sizes)
        return without_fakes(updates, sizes=sizes, fakes=self.fakes, minimum_honest=self.minimum_honest)
