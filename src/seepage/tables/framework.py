"""Boenisch et al. 2021, Section 8.4 through Flower: are the scores of its users those of our own loop?"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from seepage.core.errors import SpecError
from seepage.core.registry import import_thing
from seepage.core.types import Batch, Exchange
from seepage.engine.probes import Seen
from seepage.metrics import ExactRule, extraction_scores


def flower_users(seen: Seen, *, backend: str = "here") -> dict[str, float]:
    """A probe: a FedAvg server of Flower sends its users the same model; each trains, a client mod records.

    R of each user, and the share of users whose A, P and R are those of our loop to the last bit.
    backend: "here" is this process, "ray" Flower's own simulation.
    """
    local, exchanges = seen.known.local, seen.played.exchanges
    if local is None or local.algorithm != "fedavg" or len(exchanges) != len(seen.played.behind):
        raise SpecError("users of Flower send weights, one by one: give algorithm = 'fedavg' and per_client.")
    served = import_thing("seepage.integrations.flower.users:served", function=True)
    truth = seen.played.truth
    batches = [truth.select(rows) for rows in seen.played.behind]
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)  # as each user has: sums in another order round differently
        updates = served(exchanges[0].broadcast.model, batches, lr=local.lr, backend=backend)
        ours = [_scores(seen, one, batch) for one, batch in zip(exchanges, batches, strict=True)]
        theirs = [
            _scores(seen, replace(one, update=update), batch)
            for one, update, batch in zip(exchanges, updates, batches, strict=True)
        ]
    finally:
        torch.set_num_threads(threads)
    same = sum(a == b for a, b in zip(ours, theirs, strict=True))
    return {
        **{f"R of user {user}": scores[2] for user, scores in enumerate(theirs)},
        "identical users": same / len(theirs),
    }


def _scores(seen: Seen, exchange: Exchange, batch: Batch) -> tuple[float, float, float]:
    """A, P and R of what the server reads of one user."""
    found = seen.attack.run([exchange], seen.known)
    if found.rows is None:
        raise SpecError("the attack reads no rows: nothing can be compared with Section 8.4.")
    truth: Tensor = seen.data.spec.to_raw(batch.inputs)
    low, high = seen.data.spec.value_range or (0.0, 1.0)
    read = extraction_scores(found.values, found.support, found.rows, truth, rule=ExactRule(unit=high - low))
    return read.active, read.precision_active, read.recall
