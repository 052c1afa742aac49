"""Reviews to rows of word numbers, the way Keras does it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

PADDING, UNKNOWN = 0, 1
SPECIAL = ("<pad>", "<unk>")
# Keras' Tokenizer turns these into spaces; the apostrophe stays, so "don't" is one word.
_SEPARATORS = str.maketrans(dict.fromkeys('!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n\r', " "))


def words(text: str) -> list[str]:
    """Lower-case words; the line breaks of IMDB reviews (<br />) are not words.

    >>> words("A film, <br />I don't LIKE.")
    ['a', 'film', 'i', "don't", 'like']
    """
    return text.lower().replace("<br />", " ").translate(_SEPARATORS).split()


def most_frequent(corpus: Sequence[Sequence[str]], *, vocabulary: int) -> tuple[str, ...]:
    """Word of each id: padding, unknown, then the most frequent words; equally frequent ones by alphabet.

    >>> most_frequent([["b", "a", "c"], ["c"]], vocabulary=4)
    ('<pad>', '<unk>', 'c', 'a')
    """
    counts = Counter(word for review in corpus for word in review)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return (*SPECIAL, *ranked[: vocabulary - len(SPECIAL)])


def encode(corpus: Sequence[Sequence[str]], tokens: Sequence[str], *, length: int) -> Tensor:
    """(N, length) int64. Longer reviews keep their last words, shorter ones are padded in front.

    Both as in Keras' `pad_sequences`.

    >>> encode([["c", "x", "a"], ["a"]], ("<pad>", "<unk>", "c", "a"), length=2).tolist()
    [[1, 3], [0, 3]]
    """
    ids = {token: i for i, token in enumerate(tokens) if i >= len(SPECIAL)}
    rows = torch.full((len(corpus), length), PADDING, dtype=torch.int64)
    for row, review in zip(rows, corpus, strict=True):
        kept = [ids.get(word, UNKNOWN) for word in review[-length:]]
        if kept:
            row[-len(kept) :] = torch.tensor(kept)
    return rows
