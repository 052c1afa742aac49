"""Attacking and scoring many updates block by block: played, attacked, scored and dropped.

With ten thousand clients neither their updates nor all that an attack reads from them fit into memory. An
attack that looks at each update by itself is asked for a few at a time, and what is kept of its candidates
are the matched ones and their scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import torch
from torch import Tensor

from seepage.attacks import Attack
from seepage.attacks.base import PerUpdateAttack, pool
from seepage.core.types import Exchange, InputSpec, Knowledge, Reconstruction
from seepage.engine.pairing import Pairing
from seepage.engine.scoring import Rated, rated
from seepage.engine.views import Views
from seepage.metrics import Metric
from seepage.protocol import Played
from seepage.protocol.played import PlayedAgain

BLOCK = 64
"""Exchanges of a block. Cost: their candidates are in memory together."""


def goes_in_blocks(attack: Attack, played: Played) -> bool:
    """Where there are too many updates to keep, each is attacked by itself, and no two share an example."""
    several = sum(len(rows) for rows in played.behind) > len(played.truth)
    return isinstance(attack, PerUpdateAttack) and isinstance(played.exchanges, PlayedAgain) and not several


def run_in_blocks(
    attack: Attack,
    exchanges: Iterator[Exchange],
    known: Knowledge,
    *,
    played: Played,
    spec: InputSpec,
    tolerance: float,
    metrics: Sequence[Metric],
) -> tuple[Reconstruction, Rated]:
    """What `attack.run` finds, without its values, and what `scoring.rated` makes of it."""
    found: list[Reconstruction] = []
    whole: _Whole | None = None
    for start in range(0, len(played.behind), BLOCK):
        part = attack.run(islice(exchanges, BLOCK), known)
        if whole is None:
            whole = _Whole(Views(played, spec, part.space, tolerance))
        behind = torch.cat(played.behind[start : start + BLOCK]).sort().values
        source = None if part.source is None else part.source + start
        whole.add(rated(replace(part, source=source), whole.views, metrics, behind), behind)
        found.append(replace(part, values=part.values.new_empty(len(part), 0)))
    assert whole is not None
    return pool(found), whole.rated()


class _Whole:
    """The scores of all blocks, put together."""

    def __init__(self, views: Views) -> None:
        self.views = views
        n = len(views.played.truth)
        self._candidate, self._exchange = torch.full((n,), -1), torch.zeros(n, dtype=torch.long)
        self._exact, self._held = torch.zeros(n, dtype=torch.bool), torch.zeros(n, dtype=torch.bool)
        self._right: list[Tensor] = []
        self._claimed = 0
        self._values: Tensor | None = None
        self._scores: dict[str, Tensor] = {}

    def add(self, part: Rated, rows: Tensor) -> None:
        """The next block, which is about these rows of the truth."""
        n, pairing = len(self._exact), part.pairing
        before, chosen = sum(map(len, self._right)), pairing.candidate[rows]
        self._candidate[rows] = torch.where(chosen < 0, chosen, chosen + before)
        self._exchange[rows], self._exact[rows] = pairing.exchange[rows], pairing.exact[rows]
        self._held[rows] = pairing.held[rows]
        self._right.append(pairing.right)
        self._claimed += pairing.claimed_examples
        if self._values is None:
            self._values = part.values.new_empty(n, *part.values.shape[1:])
            self._scores = {name: score.new_empty(n) for name, score in part.scores.items()}
        self._values[rows] = part.values
        for name, score in part.scores.items():
            self._scores[name][rows] = score

    def rated(self) -> Rated:
        assert self._values is not None
        pairing = Pairing(
            candidate=self._candidate,
            exact=self._exact,
            exchange=self._exchange,
            right=torch.cat(self._right),
            held=self._held,
            claimed_examples=self._claimed,
        )
        return Rated(pairing, self._values, self._scores)
