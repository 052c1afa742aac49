"""Losses a client may train with. The server knows which: its reduction sets the scale of every gradient."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from seepage.core.errors import ModelError
from seepage.core.registry import lookup
from seepage.core.types import PADDING

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


def next_token(logits: Tensor, tokens: Tensor) -> Tensor:
    """Mean cross-entropy of each next token under the logits (n, length, vocabulary) of the one before.

    As Hugging Face's causal language models have it; padding is nobody's next token.
    """
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=PADDING)


NEXT_TOKEN = "next_token"
LOSSES: dict[str, Loss] = {
    "cross_entropy": cross_entropy,
    "cross_entropy_sum": cross_entropy_sum,
    "binary_cross_entropy": binary_cross_entropy,
    NEXT_TOKEN: next_token,
}


def loss_name(name: str, outputs: int, *, per_token: bool = False) -> str:
    """Resolve "auto" by the number of outputs, and refuse a loss that does not fit them.

    per_token: there are so many outputs at every token, as of a language model.

    >>> loss_name("auto", 1), loss_name("auto", 10), loss_name("auto", 10, per_token=True)
    ('binary_cross_entropy', 'cross_entropy', 'next_token')
    """
    if name == "auto":
        return NEXT_TOKEN if per_token else "binary_cross_entropy" if outputs == 1 else "cross_entropy"
    lookup(LOSSES, name, "loss")
    if (name == NEXT_TOKEN) != per_token:
        where = "at every token" if per_token else "for whole examples"
        raise ModelError(
            f"the loss '{name}' does not fit a model with outputs {where}: "
            f"use {NEXT_TOKEN} for a language model and another one for a classifier, or loss = 'auto'."
        )
    if (name == "binary_cross_entropy") != (outputs == 1):
        raise ModelError(
            f"the loss '{name}' does not fit a model with {outputs} output(s): "
            "use binary_cross_entropy for a single logit and cross_entropy otherwise, or loss = 'auto'."
        )
    return name
