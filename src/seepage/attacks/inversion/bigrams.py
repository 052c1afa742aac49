"""How unusual texts are, by the pairs of words in public ones: a language model that needs no download."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Surprise = Callable[[Tensor], float]
"""(n, length) token ids to the mean of -log p(next word | word)."""


def bigram_surprise(texts: Tensor, vocabulary: int) -> Surprise:
    """p(b | a) = (c(a, b) + p(b)) / (c(a) + 1) and p(b) = (c(b) + 1) / (N + vocabulary), counted in `texts`.

    Negative ids are no words.

    >>> surprise = bigram_surprise(torch.tensor([[0, 1, 2], [0, 1, -1]]), 3)
    >>> surprise(torch.tensor([[0, 1]])) < surprise(torch.tensor([[1, 0]]))
    True
    """
    texts = texts.cpu()
    first, second = texts[:, :-1].flatten(), texts[:, 1:].flatten()
    there = (first >= 0) & (second >= 0)
    pairs, seen = (first * vocabulary + second)[there].unique(return_counts=True)
    followed = torch.bincount(first[there], minlength=vocabulary)
    words = texts[texts >= 0]
    alone = (torch.bincount(words, minlength=vocabulary) + 1.0) / (len(words) + vocabulary)

    def surprise(tokens: Tensor) -> float:
        a, b = tokens[:, :-1].flatten().cpu(), tokens[:, 1:].flatten().cpu()
        if not len(a):
            return 0.0
        counts = torch.zeros(len(a))
        if len(pairs):
            place = torch.searchsorted(pairs, a * vocabulary + b).clamp(max=len(pairs) - 1)
            counts = torch.where(pairs[place] == a * vocabulary + b, seen[place], 0)
        return float(-((counts + alone[b]) / (followed[a] + 1)).log().mean())

    return surprise
