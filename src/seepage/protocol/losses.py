"""Losses a client may train with. The server knows which: its reduction sets the scale of every gradient."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from seepage.core.errors import ModelError
from seepage.core.registry import lookup

Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy, fused with the softmax (log(softmax) overflows under crafted heads)."""
    return F.cross_entropy(logits, labels)


def cross_entropy_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """Summed cross-entropy: gradients are the batch size times larger."""
    return F.cross_entropy(logits, labels, reduction="sum")


def binary_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean binary cross-entropy on a single logit (Boenisch et al., Table 8)."""
    return F.binary_cross_entropy_with_logits(logits.squeeze(-1), labels.to(logits.dtype))


LOSSES: dict[str, Loss] = {
    "cross_entropy": cross_entropy,
    "cross_entropy_sum": cross_entropy_sum,
    "binary_cross_entropy": binary_cross_entropy,
}


def loss_name(name: str, outputs: int) -> str:
    """Resolve "auto" by the number of outputs, and refuse a loss that does not fit them.

    >>> loss_name("auto", 1), loss_name("auto", 10)
    ('binary_cross_entropy', 'cross_entropy')
    """
    if name == "auto":
        return "binary_cross_entropy" if outputs == 1 else "cross_entropy"
    lookup(LOSSES, name, "loss")
    if (name == "binary_cross_entropy") != (outputs == 1):
        raise ModelError(
            f"the loss '{name}' does not fit a model with {outputs} output(s): "
            "use binary_cross_entropy for a single logit and cross_entropy otherwise, or loss = 'auto'."
        )
    return name
