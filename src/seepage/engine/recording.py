"""The source of exchanges that were recorded: a second one beside the simulation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from seepage.core.errors import NotApplicable, SeepageError
from seepage.core.types import Batch, Broadcast, Exchange, Grant, LocalTraining
from seepage.data import Dataset
from seepage.engine.prepared import Prepared
from seepage.engine.recorded import Recorded, local_training, reached
from seepage.protocol import Played, local_update
from seepage.protocol.copies import own_copy
from seepage.protocol.rounds import Craft
from seepage.protocol.threat import effective_grants
from seepage.record.exchanges import RecordedExchange

_FAR = 0.1
"""Distance of two updates, relative to the recorded one. Derived: bfloat16 rounds a number by .004 of it."""


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

    @cached_property
    def truth_in_doubt(self) -> tuple[str, ...]:
        """One sentence where training on the truth leads to another update. No attack is told."""
        local, (truth, partly) = self.local, self._truth()
        info, model = self.kept.info, self.model
        in_order = info.local.shuffle is False or (info.local.batch_size or len(truth)) >= len(truth)
        drops = info.local.dropout is not False and any(
            "Dropout" in type(m).__name__ for m in model.modules()
        )
        unlike = partly or drops or not in_order or info.filters or self.prepared.local.masking is not None
        if local is None or unlike or len(truth) == 0:
            return ()
        try:
            expected = local_update(Broadcast(own_copy(model)), truth, local).tensors
        except SeepageError:
            return ()
        sent = self.whole.update.tensors
        apart = sum(float((expected[name] - t).double().square().sum()) for name, t in sent.items())
        length = sum(float(t.double().square().sum()) for t in sent.values())
        if apart <= _FAR**2 * length:
            return ()
        return (
            "A client that trains on the truth as it was given, in the way that is known, sends another "
            "update: the truth is not what this client had (another partition, or values before it was "
            "normalised), it trains otherwise, or a filter changed the update; scores against it say little.",
        )

    def _truth(self) -> tuple[Batch, bool]:
        """What can be behind the update, and whether the client stopped before it saw all of that."""
        rows: Tensor = torch.arange(0) if self.recorded.rows is None else self.recorded.rows[self.seed]
        info = self.kept.info
        if info.local.shuffle is False:
            rows = rows[: reached(info, len(rows))]
        return self.prepared.as_fed(self.data.batch(rows)), reached(info, len(rows)) < len(rows)
