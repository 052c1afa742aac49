"""The proof of a whole batch: the update that it leads to, beside the one that was sent."""

from __future__ import annotations

from dataclasses import replace

from seepage.core.types import Batch, Exchange, Knowledge, LocalTraining, UpdateKind
from seepage.protocol import local_update


def unexplained(exchange: Exchange, known: Knowledge, batch: Batch) -> float | None:
    """How much of the update is left when that of these examples is taken away; None where it is not known
    how clients train."""
    update = exchange.update
    gradient = update.kind is UpdateKind.GRADIENT
    if known.local is None and not gradient:
        return None
    local = replace(known.local or LocalTraining(), loss=known.loss)
    if gradient:
        local = replace(local, algorithm="fedsgd")
    again = local_update(exchange.broadcast, batch, local).tensors
    apart = sum(float((again[name] - sent).double().square().sum()) for name, sent in update.tensors.items())
    whole = sum(float(sent.double().square().sum()) for sent in update.tensors.values())
    return (apart / whole) ** 0.5 if whole else None
