"""What came of some rounds: the server's side, and apart from it the truth that only scoring may see."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import overload

import torch
from torch import Tensor, nn

from seepage.core.errors import DataError
from seepage.core.types import Batch, Exchange

Place = tuple[int, tuple[int, ...]]
"""The round and the clients of an exchange."""


class PlayedAgain(Sequence[Exchange]):
    """Honest rounds that are too large to keep: every pass over them plays them anew, to the same bits.

    make: begins a pass. It is given the models that earlier passes sent, by round, and adds its own.
    places: the round and the clients of each exchange.
    """

    def __init__(
        self,
        make: Callable[[dict[int, nn.Module]], Iterator[Exchange]],
        places: Sequence[Place],
    ) -> None:
        self._make, self._places = make, tuple(places)
        self._models: dict[int, nn.Module] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Exchange]:
        return self._make(self._models)

    @overload
    def __getitem__(self, index: int) -> Exchange: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Exchange, ...]: ...
    def __getitem__(self, index: int | slice) -> Exchange | tuple[Exchange, ...]:
        """Plays all that comes before it: whoever wants several iterates."""
        if isinstance(index, slice):
            wanted = set(range(len(self))[index])
            found = {i: one for i, one in enumerate(self) if i in wanted}
            return tuple(found[i] for i in range(len(self))[index])
        return next(islice(iter(self), range(len(self))[index], None))

    def model(self, index: int) -> nn.Module:
        """What was sent in this exchange."""
        number = self._places[index][0]
        if number not in self._models:
            deque(self, maxlen=0)
        return self._models[number]


@dataclass(frozen=True)
class Played:
    """The server's side (`exchanges`) and, apart from it, the truth that only scoring may see."""

    exchanges: Sequence[Exchange]
    truth: Batch
    truth_clients: Tensor
    """(n,) which client holds each example of `truth`."""
    behind: tuple[Tensor, ...]
    """For each exchange the rows of `truth` that its clients trained on in its round, ascending."""
    rounds: int
    partly: bool = False
    """Clients stopped early, and nobody knows which of the examples behind their updates they never saw."""

    def model(self, exchange: int) -> nn.Module:
        """What was sent in this exchange."""
        if isinstance(self.exchanges, PlayedAgain):
            return self.exchanges.model(exchange)
        return self.exchanges[exchange].broadcast.model


def longest(played: Played, count: int) -> Played:
    """What is left where the server attacks only the `count` longest updates, and the examples behind them.

    A client's gradient is long where the model is wrong about its examples or unsure of them.
    """

    def length(exchange: Exchange) -> float:
        return sum(float(t.square().sum()) for t in exchange.update.tensors.values())

    lengths = [length(exchange) for exchange in played.exchanges]
    chosen = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)[:count]
    kept = {i: exchange for i, exchange in enumerate(played.exchanges) if i in set(chosen)}
    rows = torch.cat([played.behind[i] for i in chosen]).unique()
    return replace(
        played,
        exchanges=tuple(kept[i] for i in chosen),
        truth=played.truth.select(rows),
        truth_clients=played.truth_clients[rows],
        behind=tuple(torch.searchsorted(rows, played.behind[i]) for i in chosen),
    )


class Held:
    """The truth: which examples each client trained on, round by round."""

    def __init__(self) -> None:
        self._batches: dict[int, list[Batch]] = {}
        self._used: list[dict[int, int]] = []  # round, client -> which of the client's batches

    def use(self, batches: Mapping[int, Batch]) -> None:
        """In one more round."""
        self._used.append({c: _remember(self._batches.setdefault(c, []), b) for c, b in batches.items()})

    def played(self, exchanges: Sequence[Exchange], places: Sequence[Place]) -> Played:
        if not places:
            raise DataError(
                "no round was played: the attack asked for none, or the threat model allows none."
            )
        rows = _places(self._batches)
        clients = [c for c, kept in self._batches.items() for batch in kept for _ in range(len(batch))]
        return Played(
            exchanges=exchanges,
            truth=_together([batch for kept in self._batches.values() for batch in kept]),
            truth_clients=torch.tensor(clients),
            behind=tuple(
                torch.cat([rows[c, self._used[number][c]] for c in clients]).sort().values
                for number, clients in places
            ),
            rounds=len(self._used),
        )


def _remember(kept: list[Batch], batch: Batch) -> int:
    """Which of the client's batches this is. One that it trains on again adds no new truth."""
    for place, known in enumerate(kept):
        if known is batch:
            return place
    kept.append(batch)
    return len(kept) - 1


def _together(batches: Sequence[Batch]) -> Batch:
    """All examples in one batch. No value is copied where they lie one after another in memory already."""
    names = ("inputs", "labels", *(() if batches[0].targets is None else ("targets",)))
    return Batch(*(_joined([getattr(batch, name) for batch in batches]) for name in names))


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """`torch.cat`, or a view of the tensor that these are all of, part by part.

    >>> whole = torch.arange(6).view(3, 2)
    >>> _joined(whole.split([1, 2])).data_ptr() == whole.data_ptr(), _joined([whole[1:], whole[:1]])
    (True, tensor([[2, 3],
            [4, 5],
            [0, 1]]))
    """
    first, place = parts[0], parts[0].data_ptr()
    for part in parts:
        one_tensor = part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        alike = part.is_contiguous() and part.dtype == first.dtype and part.shape[1:] == first.shape[1:]
        if not (one_tensor and alike and part.data_ptr() == place):
            return torch.cat(list(parts))
        place += part.nbytes
    return first.as_strided((sum(map(len, parts)), *first.shape[1:]), first.stride())


def _places(truth: Mapping[int, Sequence[Batch]]) -> dict[tuple[int, int], Tensor]:
    """Client and number of its batch to the rows of that batch when all are put together."""
    keys = [(c, number) for c, kept in truth.items() for number in range(len(kept))]
    sizes = [len(batch) for kept in truth.values() for batch in kept]
    return dict(zip(keys, torch.arange(sum(sizes)).split(sizes), strict=True))
