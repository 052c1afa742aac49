"""Data by named columns as Hugging Face's libraries have them: `datasets.Dataset`, dicts, rows of dicts.

Models are fed one tensor an example here, so masks become `PADDING` and images become pixels; what a row says
that cannot be said so is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from seepage.core.errors import DataError, SpecError
from seepage.core.types import PADDING
from seepage.data.arrays import Layout, from_arrays
from seepage.data.dataset import Dataset
from seepage.data.tokenised import as_dataset, from_texts, split_words

TEXTS = ("text", "sentence", "review")
WORDS = ("tokens", "words")
TAGS = ("ner_tags", "pos_tags", "chunk_tags", "tags", "labels")
PICTURES = ("pixel_values", "image", "img")
LABELS = ("labels", "label", "y", "targets", "target", "class")


def columns_of(data: Any) -> tuple[dict[str, Any], dict[str, tuple[str, ...]]] | None:
    """Columns by name, and the names of classes of columns that have them; None: the data have no columns.

    >>> columns_of([{"text": "a", "label": 1}, {"text": "b", "label": 0}])
    ({'text': ['a', 'b'], 'label': [1, 0]}, {})
    """
    if isinstance(data, Mapping):
        return dict(data), {}
    if hasattr(data, "column_names") and not isinstance(data.column_names, Mapping):  # datasets.Dataset
        columns = {name: data[name][:] for name in data.column_names}
        return columns, {name: found for name in columns if (found := _class_names(data, name))}
    indexed = hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, str | bytes)
    first = data[0] if indexed and len(data) else None
    if not isinstance(first, Mapping):
        return None
    rows = [data[i] for i in range(len(data))]
    odd = next((i for i, row in enumerate(rows) if set(row) != set(first)), None)
    if odd is not None:
        raise DataError(f"row {odd} has other columns than the first one; give every row the same.")
    return {name: [row[name] for row in rows] for name in first}, {}


def _class_names(data: Any, column: str) -> tuple[str, ...]:
    """Of a ClassLabel, or of a list of them."""
    feature = (getattr(data, "features", None) or {}).get(column)
    inner = getattr(feature, "feature", feature)
    return tuple(getattr(inner, "names", None) or ())


def from_columns(
    columns: Mapping[str, Any],
    class_names: Mapping[str, tuple[str, ...]],
    *,
    name: str,
    source: str,
    tokenizer: Any = None,
    length: int = 64,
    vocabulary: int | None = None,
) -> Dataset | None:
    """A dataset of token ids, of words with a class each, of texts or of pictures; None: of none of these."""
    label = next((one for one in LABELS if one in columns), None)
    names = class_names.get(label or "", ())
    options: dict[str, Any] = {"name": name, "source": source, "class_names": names}
    if "input_ids" in columns:
        labels = None if label is None else columns[label]
        return _token_ids(columns, labels, tokenizer=tokenizer, vocabulary=vocabulary, **options)
    words = next((one for one in WORDS if one in columns), None)
    tags = next((one for one in TAGS if one in columns), None)
    if words is not None and tags is not None:
        options["class_names"] = class_names.get(tags, ())
        return _tagged(columns[words], columns[tags], tokenizer=tokenizer, length=length, **options)
    text = next((one for one in TEXTS if one in columns), None)
    if text is not None:
        labels = None if label is None else list(columns[label])
        return from_texts(list(columns[text]), labels, tokenizer=tokenizer, length=length, **options)
    picture = next((one for one in PICTURES if one in columns), None)
    if picture is None or label is None:
        return None
    layout: Layout = "CHW" if picture == "pixel_values" else "auto"
    return from_arrays(_pixels(columns[picture], name), _list(columns[label]), layout=layout, **options)


def _token_ids(
    columns: Mapping[str, Any], labels: Any, *, tokenizer: Any, vocabulary: int | None, **options: Any
) -> Dataset:
    name = options["name"]
    if any(any(_list(row)) for row in columns.get("token_type_ids", ())):
        raise DataError(
            f"{name}: token_type_ids part texts into two, which cannot be audited yet; give one text a row."
        )
    rows = [_list(row) for row in columns["input_ids"]]
    there = [_list(row) for row in columns.get("attention_mask", ())] or [[1] * len(row) for row in rows]
    if [len(row) for row in there] != [len(row) for row in rows]:
        raise DataError(f"{name}: attention_mask and input_ids differ in length; give one mark a token.")
    kept = _marked(rows, there)
    words = () if tokenizer is None else tokenizer
    each = labels is not None and len(labels) and np.ndim(labels[0]) == 1
    if not each:
        classes = None if labels is None else [int(one) for one in labels]
        return as_dataset(kept, classes, None, words, vocabulary=vocabulary, **options)
    tags = [_list(row) for row in labels]
    if [len(row) for row in tags] != [len(row) for row in rows]:
        raise DataError(f"{name}: labels and input_ids differ in length; give one label a token or a row.")
    if _are_the_tokens(rows, tags, there, name):
        return as_dataset(kept, None, None, words, vocabulary=vocabulary, **options)
    left = _marked(tags, there)
    return as_dataset(kept, None, left, words, vocabulary=vocabulary, **options)


def _are_the_tokens(rows: list[list[int]], tags: list[list[int]], there: list[list[int]], name: str) -> bool:
    """Labels of a language model, which are the tokens themselves; a part of them alone is refused."""
    pairs = [
        pair
        for row, tag in zip(_marked(rows, there), _marked(tags, there), strict=True)
        for pair in zip(row, tag, strict=True)
    ]
    trained = [(i, t) for i, t in pairs if t != PADDING]
    if not trained or any(i != t for i, t in trained):
        return False
    if len(trained) < len(pairs):
        raise DataError(
            f"{name}: labels leave out some tokens, as those of a prompt, which cannot be audited yet; leave "
            "labels out, so that every next token is a target."
        )
    return True


def _tagged(texts: Any, tags: Any, *, tokenizer: Any, length: int, **options: Any) -> Dataset:
    """Words with a class each: a word's first piece has its class, the others have none."""
    name = options["name"]
    texts, tags = [list(row) for row in texts], [_list(row) for row in tags]
    wrong = next((i for i, (a, b) in enumerate(zip(texts, tags, strict=True)) if len(a) != len(b)), None)
    if wrong is not None:
        raise DataError(f"{name}: text {wrong} has {len(texts[wrong])} words but {len(tags[wrong])} classes.")
    vocabulary, rows, word_of = split_words(texts, tokenizer, length, name)
    targets = [
        [PADDING if i is None or i == before else row[i] for i, before in zip(of, [None, *of], strict=False)]
        for of, row in zip(word_of, tags, strict=True)
    ]
    return as_dataset(rows, None, targets, vocabulary, **options)


def _marked(rows: list[list[int]], marks: list[list[int]]) -> list[list[int]]:
    """What an attention mask leaves, wherever a row was filled up."""
    return [[i for i, mark in zip(row, m, strict=True) if mark] for row, m in zip(rows, marks, strict=True)]


def _list(row: Any) -> list[int]:
    return [int(one) for one in (row.tolist() if hasattr(row, "tolist") else row)]


def _pixels(pictures: Sequence[Any], name: str) -> Any:
    arrays = [np.asarray(one.convert("RGB") if hasattr(one, "convert") else one) for one in pictures]
    if len({one.shape for one in arrays}) != 1:
        raise SpecError(
            f"{name}: pictures differ in size; resize them to one, as the model's processor does."
        )
    return np.stack(arrays)
