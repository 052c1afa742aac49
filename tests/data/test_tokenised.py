"""Texts from lists, JSON lines and tables, by words and by a tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from seepage.core.errors import DataError, SpecError
from seepage.core.types import PADDING, InputSpec, Modality
from seepage.data import load_data
from seepage.engine.rating import read_text
from seepage.metrics.text import token_accuracy

TEXTS = ["A good film.", "bad", "a good, good evening"]
CLASSES = [1, 0, 1]


class Tokenizer:
    """As Hugging Face's behave, with the marks of byte-level pieces."""

    all_special_tokens = ("<s>",)
    pieces = ("<s>", "Ġgood", "Ġevening", "Ġf", "ilm", "Ġbad", "Ġa")

    def get_vocab(self) -> dict[str, int]:
        return {piece: i for i, piece in enumerate(self.pieces)}

    def __call__(self, texts: list[str], *, truncation: bool, max_length: int) -> dict[str, Any]:
        known = {"good": [1], "evening": [2], "film.": [3, 4], "bad": [5], "a": [6], "good,": [1]}
        return {
            "input_ids": [[0, *(i for w in t.lower().split() for i in known[w])][:max_length] for t in texts]
        }


@pytest.mark.parametrize("form", ["list", "pairs", "columns", "jsonl", "csv"])
def test_every_form_gives_the_same_ids_and_labels(form: str, tmp_path: Path) -> None:
    rows = [{"text": text, "label": label} for text, label in zip(TEXTS, CLASSES, strict=True)]
    lines, table = tmp_path / "some.jsonl", tmp_path / "some.csv"
    lines.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    table.write_text("label,said\n" + "\n".join(f'{c},"{t}"' for t, c in zip(TEXTS, CLASSES, strict=True)))
    data, options = {
        "list": ((TEXTS, CLASSES), {}),
        "pairs": (list(zip(TEXTS, CLASSES, strict=True)), {}),
        "columns": ({"text": TEXTS, "label": CLASSES}, {}),
        "jsonl": (str(lines), {}),
        "csv": (str(table), {"text": "said"}),
    }[form]
    found = load_data(data, tokenizer=Tokenizer(), **options)
    assert found.inputs.tolist() == [[0, 6, 1, 3, 4], [0, 5, *[PADDING] * 3], [0, 6, 1, 1, 2]]
    assert found.labels.tolist() == CLASSES
    assert (found.spec.vocabulary, found.spec.num_classes, found.spec.shape) == (7, 2, (5,))
    assert [read_text(ids, found.spec) for ids in found.inputs] == [
        "<s> a good film",
        "<s> bad",
        "<s> a good good evening",
    ]


def test_texts_without_labels_have_no_classes_and_are_cut() -> None:
    data = load_data(TEXTS, length=2)
    assert data.inputs.tolist() == [[3, 2], [4, PADDING], [3, 2]]  # good, a, bad, ... by frequency
    assert data.spec.num_classes == 1 and not data.labels.any()


@pytest.mark.parametrize(
    ("data", "options", "error", "said"),
    [
        (["", "word"], {}, DataError, "text 0 has no token"),
        ((TEXTS, [0, 1]), {}, DataError, "3 texts but 2 labels"),
        (TEXTS, {"length": 0}, SpecError, "at least 1"),
        (TEXTS, {"tokenizer": object()}, DataError, "the tokenizer fails"),
    ],
)
def test_bad_texts_are_refused_in_one_sentence(data: Any, options: Any, error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        load_data(data, **options)


def test_files_without_a_text_say_what_they_have(tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    file.write_text('{"words": "a b"}')
    with pytest.raises(SpecError, match="text= one of words"):
        load_data(str(file))
    file.write_text("not json")
    with pytest.raises(DataError, match="one JSON object a line"):
        load_data(str(file))


def test_padding_is_no_word() -> None:
    truth = torch.tensor([[5, 6, PADDING]])
    assert token_accuracy(torch.tensor([[5, 7, PADDING]]), truth).item() == 0.5
    spec = InputSpec(modality=Modality.TEXT, shape=(3,), num_classes=2, vocabulary=9)
    assert read_text(truth[0], spec) == "#5 #6"
