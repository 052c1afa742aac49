"""Texts to rows of token ids, by a tokenizer or word by word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from seepage.core.errors import DataError, SpecError
from seepage.core.types import PADDING, InputSpec, Modality
from seepage.core.user_code import USER_CODE_ERRORS, reason
from seepage.data.dataset import Dataset
from seepage.data.text import most_frequent, words

MOST_WORDS = 10_000
"""Of the vocabulary where there is no tokenizer, as of the dataset imdb (Boenisch et al. 2021)."""
_WORD_MARKS = ("Ġ", "▁")
"""How byte-level and sentence-piece tokenizers mark that a word begins; BERT's mark that one goes on: ##."""


def from_texts(
    texts: Sequence[str],
    labels: Sequence[int] | None,
    *,
    name: str,
    source: str,
    tokenizer: Any = None,
    length: int = 64,
    class_names: Sequence[str] = (),
) -> Dataset:
    """A dataset of texts, cut after `length` tokens, shorter ones filled up with `PADDING` behind.

    tokenizer: one of Hugging Face's, or its name or folder; None: lower-case words, numbered by frequency.
    labels: None for texts without classes, as a language model is trained on.

    >>> data = from_texts(["A film!", "a long film"], None, name="two", source="by hand")
    >>> data.inputs.tolist(), data.spec.tokens
    ([[2, 3, -100], [2, 4, 3]], ('<pad>', '<unk>', 'a', 'film', 'long'))
    """
    if isinstance(length, bool) or not isinstance(length, int) or length < 1:
        raise SpecError(f"length is {length!r}; give a whole number of tokens, at least 1.")
    if not texts or not all(isinstance(text, str) for text in texts):
        raise DataError(f"{name}: texts must be strings, at least one of them.")
    if labels is not None and len(labels) != len(texts):
        raise DataError(f"{name}: {len(texts)} texts but {len(labels)} labels; give one label per text.")
    tokens, rows = _by_words(texts) if tokenizer is None else _by_tokenizer(tokenizer, texts, length, name)
    length = min(length, max(map(len, rows)))
    inputs = torch.full((len(rows), length), PADDING, dtype=torch.int64)
    for row, ids in zip(inputs, rows, strict=True):
        row[: len(ids)] = torch.tensor(ids[:length], dtype=torch.int64)
    if bool((inputs == PADDING).all(dim=1).any()):
        empty = int((inputs == PADDING).all(dim=1).nonzero()[0])
        raise DataError(f"{name}: text {empty} has no token; leave empty texts out.")
    classes = torch.zeros(len(rows), dtype=torch.int64) if labels is None else torch.as_tensor(labels).long()
    spec = InputSpec(
        modality=Modality.TEXT,
        shape=(length,),
        num_classes=len(class_names) or int(classes.max()) + 1,
        value_range=None,
        vocabulary=len(tokens),
        tokens=tokens,
        class_names=tuple(class_names),
    )
    return Dataset(name, inputs, classes, spec, source)


def _by_words(texts: Sequence[str]) -> tuple[tuple[str, ...], list[list[int]]]:
    corpus = [words(text) for text in texts]
    tokens = most_frequent(corpus, vocabulary=MOST_WORDS)
    number = {token: i for i, token in enumerate(tokens)}
    return tokens, [[number.get(word, number["<unk>"]) for word in text] for text in corpus]


def _by_tokenizer(
    given: Any, texts: Sequence[str], length: int, name: str
) -> tuple[tuple[str, ...], list[list[int]]]:
    tokenizer = _loaded(given) if isinstance(given, str) else given
    try:
        rows = tokenizer(list(texts), truncation=True, max_length=length)["input_ids"]
        pieces: dict[str, int] = tokenizer.get_vocab()
        special = set(getattr(tokenizer, "all_special_tokens", ()))
    except USER_CODE_ERRORS as error:
        raise DataError(
            f"{name}: the tokenizer fails ({type(error).__name__}: {reason(error)}); give one of Hugging "
            "Face's, which is called with a list of texts and gives input_ids."
        ) from error
    tokens = [""] * (max(pieces.values()) + 1)
    marked = any(piece.startswith(_WORD_MARKS) for piece in pieces)
    for piece, number in pieces.items():
        tokens[number] = piece if not marked or piece in special else _readable(piece)
    return tuple(tokens), [list(map(int, row)) for row in rows]


def _readable(piece: str) -> str:
    """A word as it is; what goes on in the middle of one with ## before it.

    >>> _readable("Ġfilm"), _readable("ing")
    ('film', '##ing')
    """
    return piece[1:] if piece.startswith(_WORD_MARKS) else f"##{piece}"


def _loaded(name: str) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise SpecError(
            f"tokenizer '{name}' needs the package transformers: pip install 'seepage[transformers]'."
        ) from None
    try:
        return AutoTokenizer.from_pretrained(name)
    except USER_CODE_ERRORS as error:
        raise SpecError(
            f"tokenizer '{name}' cannot be loaded ({reason(error)}): give a folder that holds one, or a name "
            "on the Hugging Face hub."
        ) from None
