"""Copies of tensors that take memory only once somebody writes to one of them."""

from __future__ import annotations

import torch
from torch import Tensor


def lazy_clone(tensor: Tensor) -> Tensor:
    """A copy that shares its memory with the original until either is written to.

    Torch keeps count of that by itself. Where it cannot (memory that it did not allocate, such as a mapped
    file's, or a device without it) this is a plain copy.

    >>> one = torch.zeros(2)
    >>> other = lazy_clone(one)
    >>> shares_memory(other), other.add_(1).tolist(), one.tolist(), shares_memory(other)
    (True, [1.0, 1.0], [0.0, 0.0], False)
    """
    clone = getattr(torch, "_lazy_clone", Tensor.clone)
    try:
        copied: Tensor = clone(tensor.detach())
    except RuntimeError:
        copied = tensor.detach().clone()
    return copied


def shares_memory(tensor: Tensor) -> bool:
    """Whether it is such a copy, or has some, which nobody has written to.

    >>> shares_memory(torch.zeros(2))
    False
    """
    asked = getattr(torch._C, "_is_cow_tensor", None)
    # sparse tensors have no memory of the usual kind to ask about
    return asked is not None and tensor.layout is torch.strided and bool(asked(tensor))
