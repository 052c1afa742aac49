"""Several rounds with the same client may show the same example more than once: keep its best reading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from seepage.attacks.reading.rows import SKETCH, agreeing_rows, representatives
from seepage.core.types import Reconstruction


def merge_repeats(found: Reconstruction, clients: Sequence[tuple[int, ...]]) -> Reconstruction:
    """Merge candidates that agree and belong to the same clients (one entry for each candidate).

    The reading with the highest confidence stays, with the support of all.

    >>> values, client = torch.tensor([[1.0], [2.0], [1.0], [1.0]]), [(0,), (0,), (0,), (1,)]
    >>> merged = merge_repeats(Reconstruction(values=values, support=torch.tensor([1, 1, 3, 2])), client)
    >>> merged.values.flatten().tolist(), merged.support.tolist()
    ([1.0, 2.0, 1.0], [4, 1, 2])
    """
    sketch = _sketch(found.values)
    confidence = torch.ones(len(found)) if found.confidence is None else found.confidence.cpu()
    support = torch.ones(len(found), dtype=torch.long) if found.support is None else found.support.cpu()
    kept, supports = [], []
    for owner in dict.fromkeys(clients):
        mine = torch.tensor([i for i, client in enumerate(clients) if client == owner])
        groups = agreeing_rows(sketch[mine])
        best, size = representatives(groups, confidence[mine])
        kept.append(mine[best])
        supports.append(torch.zeros_like(size).index_add_(0, groups, support[mine].to(size.dtype)))
    if not kept:
        return found
    index = torch.cat(kept)
    return replace(
        found,
        values=found.values[index.to(found.values.device)],
        claimed=_at(found.claimed, index),
        confidence=_at(found.confidence, index),
        support=None if found.support is None else torch.cat(supports),
        source=_at(found.source, index),
    )


def _at(entries: Tensor | None, index: Tensor) -> Tensor | None:
    return None if entries is None else entries[index.to(entries.device)]


def _sketch(values: Tensor) -> Tensor:
    flat = values.flatten(1).double().cpu()
    generator = torch.Generator().manual_seed(0)
    return flat @ torch.randn(flat.shape[1], SKETCH, generator=generator, dtype=torch.float64)
