"""Sending every entry of an update in few bits."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from seepage.core.types import Batch, Broadcast, Defense, LocalStep, Update


def quantisation(*, bits: int = 8) -> Defense:
    """Client: round every entry to one of 2^bits - 1 evenly spaced levels, symmetric about zero, a tensor."""
    if bits not in range(2, 17):
        raise ValueError(f"bits must be a whole number from 2 to 16 (for one bit use 'sign'), not {bits}")

    def quantise(broadcast: Broadcast, batch: Batch, next_step: LocalStep) -> Update:
        update = next_step(broadcast, batch)
        return replace(update, tensors={name: round_to(t, bits) for name, t in update.tensors.items()})

    return quantise


def round_to(tensor: Tensor, bits: int) -> Tensor:
    """code * step, code a whole number in [-(2^(bits-1) - 1), 2^(bits-1) - 1]; the largest entry is exact.

    >>> round_to(torch.tensor([127.0, 1.4, -0.6]), 8).tolist()
    [127.0, 1.0, -1.0]
    """
    if tensor.numel() == 0:
        return tensor
    step = tensor.abs().max() / (2 ** (bits - 1) - 1)
    # a tensor of zeros has no step and stays what it is
    return torch.where(step > 0, (tensor / step).round() * step, tensor)
