"""A strategy around another one that records at the server, whatever the other one does."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from seepage.integrations.flower.messages import arrays_of, write
from seepage.record.exchanges import ExchangeKind, Recorder


class AroundStrategy(Strategy):
    """Does what the strategy inside does."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        return self.strategy.aggregate_train(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        self.strategy.summary()


class RecordingStrategy(AroundStrategy):
    """Records every exchange of `strategy`, or those of `rounds`: `RecordingStrategy(FedAvg(), "recorded/")`.

    Clients are numbered by their node, for a server does not know their partitions. known: other fields of an
    exchange's JSON.
    """

    def __init__(
        self,
        strategy: Strategy,
        folder: Path | str,
        *,
        kind: ExchangeKind = "weights",
        rounds: Collection[int] | None = None,
        **known: Any,
    ) -> None:
        super().__init__(strategy)
        self._recorder = Recorder(folder, replace=True)
        self._kind, self._rounds, self._known = kind, rounds, known
        self._sent: dict[int, dict[str, Tensor]] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = list(super().configure_train(server_round, arrays, config, grid))
        self._sent = {}
        if self._rounds is None or server_round in self._rounds:
            shared: dict[int, dict[str, Tensor] | None] = {}  # one content may go to many
            for message in messages:
                key = id(message.content)
                if key not in shared:
                    shared[key] = arrays_of(message)
                if (sent := shared[key]) is not None:
                    self._sent[message.metadata.dst_node_id] = sent
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        kept = list(replies)
        known = {"source": "Flower strategy", **self._known}
        for reply in kept:
            node = reply.metadata.src_node_id
            if node in self._sent:
                sent = self._sent[node]
                write(
                    self._recorder,
                    sent,
                    reply,
                    round_number=server_round,
                    client=node,
                    kind=self._kind,
                    **known,
                )
        return super().aggregate_train(server_round, kept)
