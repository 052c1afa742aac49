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

from seepage.attacks import Attack
from seepage.attacks.base import PerUpdateAttack, pool
from seepage.core.types import Exchange, InputSpec, Knowledge, Reconstruction
from seepage.engine.rating import Rated, Rating
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
    """What `attack.run` finds, without its values, and what `rating.rated` makes of it."""
    found: list[Reconstruction] = []
    rating: Rating | None = None
    for start in range(0, len(played.behind), BLOCK):
        part = attack.run(islice(exchanges, BLOCK), known)
        if rating is None:
            rating = Rating(Views(played, spec, part.space, tolerance), metrics)
        source = None if part.source is None else part.source + start
        behind = torch.cat(played.behind[start : start + BLOCK]).sort().values
        rating.add(replace(part, source=source), behind)
        found.append(replace(part, values=part.values.new_empty(len(part), 0)))
    assert rating is not None
    return pool(found), rating.done()
