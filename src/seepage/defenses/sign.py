"""One bit an entry: its sign, with one magnitude a tensor."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from seepage.core.types import Batch, Broadcast, Defense, LocalStep, Update


def sign() -> Defense:
    """Client: send the sign of every entry, times the mean magnitude of its tensor (Karimireddy et al. 2019).

    Plain signs (Bernstein et al. 2018) would need another learning rate; the mean magnitude keeps the
    protocol's, and tells one number a tensor.
    """

    def signs(broadcast: Broadcast, batch: Batch, next_step: LocalStep) -> Update:
        update = next_step(broadcast, batch)
        return replace(update, tensors={name: scaled_sign(t) for name, t in update.tensors.items()})

    return signs


def scaled_sign(tensor: Tensor) -> Tensor:
    """Zeros stay zero.

    >>> import torch
    >>> scaled_sign(torch.tensor([3.0, -1.0, 0.0, 4.0])).tolist()
    [2.0, -2.0, 0.0, 2.0]
    """
    return tensor.sign() * tensor.abs().mean() if tensor.numel() else tensor
