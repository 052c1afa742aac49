"""The proof of a whole batch: the update that it leads to, beside the one that was sent."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from seepage.core.types import Batch, Exchange, Knowledge, LocalTraining, UpdateKind
from seepage.protocol import local_update


def shares(exchange: Exchange, known: Knowledge, batch: Batch) -> Tensor:
    """(n,) how much of the gradient of these examples together is each one's own."""
    local = LocalTraining(loss=known.loss)

    def size(of: Batch) -> float:
        sent = local_update(exchange.broadcast, of, local).tensors.values()
        return math.sqrt(sum(float(t.double().square().sum()) for t in sent))

    whole = size(batch) * (1 if known.loss.endswith("_sum") else len(batch))
    own = [size(batch.select(slice(i, i + 1))) for i in range(len(batch))]
    return torch.tensor(own, dtype=torch.float64) / max(whole, torch.finfo(torch.float64).tiny)


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
