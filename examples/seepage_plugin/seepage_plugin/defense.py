"""A defense wraps the client's step: it may act before it, after it, or refuse."""

from __future__ import annotations

from dataclasses import replace

import torch

from seepage.core.types import Batch, Broadcast, Defense, LocalStep, Update


def round_off(*, digits: int = 2) -> Defense:
    """Client: send every value with so many decimal digits only. Heuristic."""
    if digits < 1:
        raise ValueError("digits must be at least 1")

    def defense(broadcast: Broadcast, batch: Batch, next_step: LocalStep) -> Update:
        sent = next_step(broadcast, batch)
        rounded = {name: torch.round(tensor, decimals=digits) for name, tensor in sent.tensors.items()}
        return replace(sent, tensors=rounded)

    return defense
