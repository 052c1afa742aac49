"""Columns as Hugging Face's libraries name them: dicts, rows of dicts, and `datasets.Dataset` where it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seepage.core.errors import DataError, SpecError
from seepage.core.types import PADDING, Modality
from seepage.data import load_data

IDS = [[2, 5, 6, 3], [2, 7, 3, 0], [0, 2, 8, 3]]  # filled up behind, and before
THERE = [[1, 1, 1, 1], [1, 1, 1, 0], [0, 1, 1, 1]]
FED = [[2, 5, 6, 3], [2, 7, 3, PADDING], [2, 8, 3, PADDING]]
TAGS = [[PADDING, 1, 0, PADDING], [PADDING, 2, PADDING, PADDING], [PADDING, PADDING, 1, PADDING]]
FORMS = ["dict", "tensors", "rows", "datasets"]


def in_form(form: str, columns: dict[str, Any]) -> Any:
    if form == "datasets":
        datasets = pytest.importorskip("datasets", reason="the extra hub is not installed")
        return datasets.Dataset.from_dict(columns)
    if form == "tensors":
        return {name: torch.tensor(values) for name, values in columns.items()}
    count = len(next(iter(columns.values())))
    return columns if form == "dict" else [{n: v[i] for n, v in columns.items()} for i in range(count)]


@pytest.mark.parametrize("form", FORMS)
def test_masks_become_padding_and_labels_stay(form: str) -> None:
    columns = {
        "input_ids": IDS,
        "attention_mask": THERE,
        "token_type_ids": [[0] * 4] * 3,
        "labels": [1, 0, 2],
    }
    found = load_data(in_form(form, columns), vocabulary=20)
    assert found.inputs.tolist() == FED and found.labels.tolist() == [1, 0, 2]
    assert (found.spec.num_classes, found.spec.vocabulary, found.spec.modality) == (3, 20, Modality.TEXT)
    assert found.targets is None and not found.spec.token_labels


@pytest.mark.parametrize("form", FORMS)
def test_a_label_for_each_token_is_a_class_unless_it_is_the_token_itself(form: str) -> None:
    columns = {"input_ids": IDS, "attention_mask": THERE, "labels": TAGS}
    tagged = load_data(in_form(form, columns))
    assert tagged.targets is not None and tagged.spec.token_labels and tagged.spec.num_classes == 3
    assert tagged.targets.tolist() == [*TAGS[:2], [PADDING, 1, PADDING, PADDING]]
    batch = tagged.batch(torch.tensor([2, 0]))
    assert batch.targets is not None and batch.targets[0].tolist() == [PADDING, 1, PADDING, PADDING]
    assert load_data(tagged, last=1).targets.tolist() == [[PADDING, 1, PADDING, PADDING]]  # type: ignore[union-attr]
    language = load_data(in_form(form, {**columns, "labels": IDS}))
    assert language.targets is None and language.spec.num_classes == 1


@pytest.mark.parametrize("form", ["dict", "rows", "datasets", "jsonl"])
def test_words_with_classes_are_cut_into_tokens_with_classes(form: str, tmp_path: Path) -> None:
    columns = {"tokens": [["Ann", "sleeps"], ["so", "does", "Bob"]], "ner_tags": [[1, 0], [0, 0, 1]]}
    data: Any = in_form("dict" if form == "jsonl" else form, columns)
    if form == "jsonl":
        data = tmp_path / "some.jsonl"
        data.write_text("\n".join(map(json.dumps, in_form("rows", columns))))
    found = load_data(data, tokenizer=Pieces())
    assert found.inputs.tolist() == [[0, 1, 2, 3, PADDING], [0, 4, 5, 6, 7]]
    assert found.targets is not None  # of a word its first piece
    assert found.targets.tolist() == [[PADDING, 1, 0, PADDING, PADDING], [PADDING, 0, 0, 1, PADDING]]
    by_words = load_data(in_form("dict", columns))
    assert by_words.targets is not None
    assert by_words.targets.tolist() == [[1, 0, PADDING], [0, 0, 1]]


class Pieces:
    """A fast tokenizer, as far as it is asked: "sleeps" and "Bob" are two pieces each."""

    _pieces = {"Ann": [1], "sleeps": [2, 3], "so": [4], "does": [5], "Bob": [6, 7]}  # noqa: RUF012

    def get_vocab(self) -> dict[str, int]:
        return {f"piece{i}": i for i in range(8)}

    def __call__(self, texts: list[list[str]], **settings: Any) -> Any:
        assert settings["is_split_into_words"]
        cut = [[(piece, i) for i, word in enumerate(text) for piece in self._pieces[word]] for text in texts]
        return _Cut([[(0, None), *text] for text in cut])


class _Cut(dict[str, Any]):
    def __init__(self, pairs: list[list[tuple[int, int | None]]]) -> None:
        super().__init__(input_ids=[[piece for piece, _ in text] for text in pairs])
        self._words = [[word for _, word in text] for text in pairs]

    def word_ids(self, row: int) -> list[int | None]:
        return self._words[row]


def test_pictures_and_names_of_classes_of_a_datasets_dataset() -> None:
    datasets = pytest.importorskip("datasets", reason="the extra hub is not installed")
    from PIL import Image

    pictures = [Image.fromarray(np.full((4, 4, 3), value, dtype=np.uint8)) for value in (0, 255)]
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["dark", "light"])}
    )
    found = load_data(datasets.Dataset.from_dict({"image": pictures, "label": [0, 1]}, features=features))
    assert found.spec.class_names == ("dark", "light") and found.inputs.shape == (2, 3, 4, 4)
    assert found.inputs.flatten(1).mean(dim=1).tolist() == [0.0, 1.0]
    values = load_data({"pixel_values": torch.rand(2, 3, 4, 4), "labels": torch.tensor([0, 1])})
    assert values.spec.shape == (3, 4, 4)


@pytest.mark.parametrize(
    ("columns", "error", "said"),
    [
        ({"input_ids": IDS, "token_type_ids": [[0, 0, 1, 1]] * 3}, DataError, "token_type_ids part texts"),
        ({"input_ids": IDS, "attention_mask": [[1]] * 3}, DataError, "attention_mask and input_ids differ"),
        ({"input_ids": IDS, "labels": [[1, 2]] * 3}, DataError, "one label a token or a row"),
        (
            {"input_ids": [[4, 5, 6]], "labels": [[PADDING, 5, 6]]},
            DataError,
            "as those of a prompt, which cannot be audited yet",
        ),
        ({"input_ids": [[0]], "attention_mask": [[0]]}, DataError, "text 0 has no token"),
        ({"text": ["a b"], "label": ["good"]}, DataError, "labels must be whole numbers"),
        ({"tokens": [["a", "b"]], "tags": [[0]]}, DataError, "text 0 has 2 words but 1 classes"),
        ({"image": [np.zeros((2, 2, 3)), np.zeros((3, 3, 3))], "label": [0, 1]}, SpecError, "differ in size"),
        ({"input_ids": [[4, 5]], "labels": [[PADDING] * 2]}, DataError, "no token has a class"),
    ],
)
def test_what_cannot_be_said_in_one_tensor_is_refused(columns: Any, error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        load_data(columns)


def test_rows_of_different_columns_are_refused() -> None:
    with pytest.raises(DataError, match="row 1 has other columns"):
        load_data([{"text": "a", "label": 1}, {"text": "b"}])
