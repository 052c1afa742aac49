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


def mean_squared_error(outputs: Tensor, numbers: Tensor) -> Tensor:
    """Mean over all numbers (n, targets) of all examples, as torch has it: regression."""
    return F.mse_loss(outputs, numbers.to(outputs.dtype))


def multi_label(logits: Tensor, flags: Tensor) -> Tensor:
    """Mean binary cross-entropy over all flags (n, targets): an example may have several, or none."""
    return F.binary_cross_entropy_with_logits(logits, flags.to(logits.dtype))


def next_token(logits: Tensor, tokens: Tensor) -> Tensor:
    """Mean cross-entropy of each next token under the logits (n, length, vocabulary) of the one before.

    As Hugging Face's causal language models have it; padding is nobody's next token. Behind a trained prompt,
    whose last place predicts the first token, there is one place more than there are tokens.
    """
    ahead = logits[:, :-1]
    following = tokens[:, tokens.shape[1] - ahead.shape[1] :]
    return F.cross_entropy(ahead.flatten(0, 1), following.flatten(), ignore_index=PADDING)


def each_token(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy over the tokens (n, length) with a target: a class, or the word behind a mask."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PADDING)


NEXT_TOKEN, MASKED_TOKEN, TOKEN_CLASS = "next_token", "masked_token", "token_class"
PER_TOKEN = (NEXT_TOKEN, MASKED_TOKEN, TOKEN_CLASS)
OF_NUMBERS = ("mean_squared_error", "multi_label")
"""Their targets are numbers, which no server can enumerate as it does classes."""
LOSSES: dict[str, Loss] = {
    "cross_entropy": cross_entropy,
    "cross_entropy_sum": cross_entropy_sum,
    "binary_cross_entropy": binary_cross_entropy,
    NEXT_TOKEN: next_token,
    MASKED_TOKEN: each_token,
    TOKEN_CLASS: each_token,
    "mean_squared_error": mean_squared_error,
    "multi_label": multi_label,
}


def loss_of_numbers(name: str, labels: Tensor) -> str:
    """For targets (n, k) that are numbers: what "auto" means, by whether several of them are all 0 or 1.

    >>> import torch
    >>> loss_of_numbers("auto", torch.tensor([[0.0, 1.0]])), loss_of_numbers("auto", torch.tensor([[0.5]]))
    ('multi_label', 'mean_squared_error')
    """
    if name != "auto":
        return loss_name(name, labels.shape[-1], numbers=True)
    flags = labels.shape[-1] > 1 and bool(((labels == 0) | (labels == 1)).all())
    return "multi_label" if flags else "mean_squared_error"


def loss_name(name: str, outputs: int, *, per_token: str | None = None, numbers: bool = False) -> str:
    """Resolve "auto" by the number of outputs, and refuse a loss that does not fit them.

    per_token: there are so many outputs at every token, and this loss (one of `PER_TOKEN`) is theirs.
    numbers: the targets are numbers and not classes (see `loss_of_numbers`).

    >>> loss_name("auto", 1), loss_name("auto", 10), loss_name("auto", 10, per_token=NEXT_TOKEN)
    ('binary_cross_entropy', 'cross_entropy', 'next_token')
    """
    if name == "auto":
        return per_token or ("binary_cross_entropy" if outputs == 1 else "cross_entropy")
    lookup(LOSSES, name, "loss")
    if (name in OF_NUMBERS) != numbers:
        raise ModelError(
            f"the loss '{name}' does not fit targets that are {'numbers' if numbers else 'classes'}: "
            f"use {' or '.join(OF_NUMBERS) if numbers else 'cross_entropy'}, or loss = 'auto'."
        )
    if numbers:
        return name
    if (name if name in PER_TOKEN else None) != per_token:
        where = f"at every token ({per_token})" if per_token else "for whole examples"
        raise ModelError(
            f"the loss '{name}' does not fit a model with outputs {where}: "
            f"use {per_token or 'another one'}, or loss = 'auto'."
        )
    if per_token is None and (name == "binary_cross_entropy") != (outputs == 1):
        raise ModelError(
            f"the loss '{name}' does not fit a model with {outputs} output(s): "
            "use binary_cross_entropy for a single logit and cross_entropy otherwise, or loss = 'auto'."
        )
    return name
