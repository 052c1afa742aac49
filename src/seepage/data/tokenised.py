"""Texts to rows of token ids, by a tokenizer or word by word."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
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
    rows = [row[:length] for row in rows]
    return as_dataset(rows, labels, None, tokens, name=name, source=source, class_names=class_names)


def as_dataset(
    rows: Sequence[Sequence[int]],
    labels: Sequence[int] | None,
    targets: Sequence[Sequence[int]] | None,
    tokens: Any,
    *,
    name: str,
    source: str,
    class_names: Sequence[str] = (),
    vocabulary: int | None = None,
) -> Dataset:
    """A dataset of rows of token ids, shorter ones filled up with `PADDING` behind.

    targets: a class for each token. tokens: the word of each id, or the tokenizer that knows them.

    >>> as_dataset([[1, 2], [3]], None, None, (), name="two", source="by hand").inputs.tolist()
    [[1, 2], [3, -100]]
    """
    if (empty := next((i for i, row in enumerate(rows) if len(row) == 0), None)) is not None:
        raise DataError(f"{name}: text {empty} has no token; leave empty texts out.")
    if not isinstance(tokens, tuple):
        tokens = _words_of(_loaded(tokens) if isinstance(tokens, str) else tokens)
    inputs = _filled(rows)
    if labels is not None and not all(isinstance(one, Integral) for one in labels):
        raise DataError(f"{name}: labels must be whole numbers, one for each text, counted from 0.")
    classes = torch.zeros(len(rows), dtype=torch.int64) if labels is None else torch.as_tensor(labels).long()
    tags = None if targets is None else _filled(targets)
    spec = InputSpec(
        modality=Modality.TEXT,
        shape=(inputs.shape[1],),
        num_classes=len(class_names) or int((classes if tags is None else tags).max()) + 1,
        value_range=None,
        vocabulary=vocabulary or len(tokens) or int(inputs.max()) + 1,
        tokens=tokens,
        class_names=tuple(class_names),
        token_labels=tags is not None,
    )
    return Dataset(name, inputs, classes, spec, source, targets=tags)


def _filled(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    whole = torch.full((len(rows), max(map(len, rows))), PADDING, dtype=torch.int64)
    for row, ids in zip(whole, rows, strict=True):
        row[: len(ids)] = torch.tensor(ids, dtype=torch.int64)
    return whole


def split_words(
    texts: Sequence[Sequence[str]], tokenizer: Any, length: int, name: str
) -> tuple[tuple[str, ...], list[list[int]], list[list[int | None]]]:
    """Texts that are split into words already: vocabulary, token ids, and the word that each token is of."""
    if tokenizer is None:
        tokens = most_frequent(texts, vocabulary=MOST_WORDS)
        number = {token: i for i, token in enumerate(tokens)}
        rows = [[number.get(word, number["<unk>"]) for word in text][:length] for text in texts]
        return tokens, rows, [list(range(len(row))) for row in rows]
    loaded = _loaded(tokenizer) if isinstance(tokenizer, str) else tokenizer
    try:
        cut: Any = loaded(
            [list(t) for t in texts], is_split_into_words=True, truncation=True, max_length=length
        )
        return (
            _words_of(loaded),
            [list(map(int, row)) for row in cut["input_ids"]],
            [list(cut.word_ids(i)) for i in range(len(texts))],
        )
    except USER_CODE_ERRORS as error:
        raise DataError(
            f"{name}: the tokenizer fails on words ({type(error).__name__}: {reason(error)}); give a fast "
            "one of Hugging Face's, which tells the word of each token."
        ) from error


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
        tokens = _words_of(tokenizer)
    except USER_CODE_ERRORS as error:
        raise DataError(
            f"{name}: the tokenizer fails ({type(error).__name__}: {reason(error)}); give one of Hugging "
            "Face's, which is called with a list of texts and gives input_ids."
        ) from error
    return tokens, [list(map(int, row)) for row in rows]


def _words_of(tokenizer: Any) -> tuple[str, ...]:
    """The word of each id."""
    pieces: dict[str, int] = tokenizer.get_vocab()
    special = set(getattr(tokenizer, "all_special_tokens", ()))
    tokens = [""] * (max(pieces.values()) + 1)
    marked = any(piece.startswith(_WORD_MARKS) for piece in pieces)
    for piece, number in pieces.items():
        tokens[number] = piece if not marked or piece in special else _readable(piece)
    return tuple(tokens)


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
