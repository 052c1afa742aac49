"""The source of exchanges that were recorded: a second one beside the simulation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from seepage.core.errors import NotApplicable
from seepage.core.types import Batch, Exchange, Grant, LocalTraining
from seepage.data import Dataset
from seepage.engine.prepared import Prepared
from seepage.engine.recorded import Recorded, local_training, reached
from seepage.protocol import Played
from seepage.protocol.rounds import Craft
from seepage.protocol.threat import effective_grants
from seepage.record.exchanges import RecordedExchange


@dataclass(frozen=True)
class Recording:
    """One recorded exchange; its number in the folder is the seed."""

    prepared: Prepared
    recorded: Recorded
    seed: int

    @property
    def kept(self) -> RecordedExchange:
        """As it is on disk."""
        return self.recorded.exchanges[self.seed]

    @cached_property
    def data(self) -> Dataset:
        return self.prepared.data(self.seed)

    @cached_property
    def public(self) -> Batch | None:
        return self.prepared.draw(self.seed)[1]

    @property
    def model(self) -> nn.Module:
        return self.whole.broadcast.model

    @property
    def local(self) -> LocalTraining | None:
        return local_training(self.kept.info)

    @property
    def scored(self) -> bool:
        return self.recorded.rows is not None

    @cached_property
    def whole(self) -> Exchange:
        """With all that is recorded, whatever the server is to know."""
        return self.kept.exchange(self.prepared.model(self.seed))

    def play(self, craft: Craft | None) -> Played:
        """What was sent is sent: only an honest server can be looked at afterwards."""
        if craft is not None:
            raise NotApplicable("it sends models of its own, and these exchanges were recorded before.")
        (truth, partly), exchange = self._truth(), self.whole
        grants = effective_grants(self.prepared.threat, self.prepared.spec.protocol.aggregation)
        update = exchange.update
        examples = update.num_examples if Grant.BATCH_SIZE in grants else None
        if examples is not None and Grant.LOCAL_TRAINING in grants:
            examples = reached(self.kept.info, examples)
        seen = replace(
            exchange,
            update=replace(
                update,
                num_examples=examples,
                buffers=update.buffers if Grant.BUFFERS in grants else None,
            ),
            labels=truth.labels if Grant.LABELS in grants else None,
        )
        return Played(
            exchanges=(seen,),
            truth=truth,
            truth_clients=torch.full((len(truth),), self.kept.client),
            behind=(torch.arange(len(truth)),),
            rounds=1,
            partly=partly,
        )

    def _truth(self) -> tuple[Batch, bool]:
        """What can be behind the update, and whether the client stopped before it saw all of that."""
        rows: Tensor = torch.arange(0) if self.recorded.rows is None else self.recorded.rows[self.seed]
        info = self.kept.info
        if info.local.shuffle is False:
            rows = rows[: reached(info, len(rows))]
        return self.prepared.as_fed(self.data.batch(rows)), reached(info, len(rows)) < len(rows)
