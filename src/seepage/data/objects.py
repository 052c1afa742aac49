"""Data the user already has in Python: arrays, a torch dataset, or a function that returns either."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from seepage.core.errors import DataError, SpecError
from seepage.core.registry import import_thing
from seepage.core.types import Modality
from seepage.core.user_code import (
    USER_CODE_ERRORS,
    current_folder_importable,
    reason,
)
from seepage.data.arrays import Layout, from_arrays, from_mapping
from seepage.data.dataset import Dataset
from seepage.data.dict_columns import columns_of, from_columns
from seepage.data.tokenised import from_texts


def from_object(
    data: Any,
    /,
    *,
    name: str = "your data",
    source: str = "passed in from Python",
    modality: Modality | None = None,
    layout: Layout = "auto",
    vocabulary: int | None = None,
    tokenizer: Any = None,
    length: int = 64,
) -> Dataset:
    """A Dataset as it is; (x, y); a dict of arrays; a map-style dataset of (x, y) pairs or its
    loader; texts; or columns.

    Texts are strings in the place of x, or a list of them without labels, for a language model. Columns
    (input_ids, pixel_values, text, tokens, labels, ...) come as a datasets.Dataset, a dict, or rows that are
    dicts. tokenizer, length: see `tokenised.from_texts`.

    >>> from_object((torch.rand(4, 3), [0, 1, 0, 1])).spec.shape
    (3,)
    """
    if isinstance(data, Dataset):
        return data
    if isinstance(data, DataLoader):
        data = data.dataset  # how it is cut into batches is the protocol's to say
    told: dict[str, Any] = {"name": name, "source": source, "tokenizer": tokenizer, "length": length}
    if (texts := _texts(data)) is not None:
        return from_texts(*texts, **told)
    if (columns := columns_of(data)) is not None:
        found = from_columns(*columns, vocabulary=vocabulary, **told)
        if found is not None:
            return found
        data = columns[0]
    options: dict[str, Any] = {"modality": modality, "layout": layout, "vocabulary": vocabulary}
    if isinstance(data, Mapping):
        return from_mapping(data, name=name, source=source, **options)
    if isinstance(data, tuple | list) and len(data) == 2 and not _is_pair_list(data):
        inputs, labels = data
    elif isinstance(data, TensorDataset):
        if len(data.tensors) != 2:
            raise DataError(
                f"{name}: the TensorDataset holds {len(data.tensors)} tensors; give inputs and labels."
            )
        inputs, labels = data.tensors
    elif hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, str | bytes):
        inputs, labels = _pairs(data, name)
    else:
        raise DataError(
            f"{name}: data of type {type(data).__name__} cannot be used; "
            "give (inputs, labels), a dict, or a torch Dataset with a length and (input, label) items."
        )
    return from_arrays(inputs, labels, name=name, source=source, **options)


def _texts(data: Any) -> tuple[list[str], Any] | None:
    """Texts and their labels, None for none, where the data are texts."""
    if isinstance(data, list) and _strings(data):
        return data, None
    if isinstance(data, tuple | list) and len(data) == 2 and _strings(data[0]) and not _is_pair_list(data):
        return list(data[0]), data[1]
    if isinstance(data, list) and _is_pair_list(data) and _strings([text for text, _ in data]):
        return [text for text, _ in data], [label for _, label in data]
    return None


def _strings(values: Any) -> bool:
    return isinstance(values, tuple | list) and bool(values) and all(isinstance(one, str) for one in values)


def from_function(reference: str, /, *, modality: Modality | None = None, **options: Any) -> Dataset:
    """Calls "package.module:function", found in the current folder too, with `options`."""
    with current_folder_importable():
        function = import_thing(reference, DataError, function=True)
        check_options(function, options, reference)
        try:
            result = function(**options)
        except USER_CODE_ERRORS as error:
            raise DataError(
                f"{reference} failed with {type(error).__name__}: {reason(error)}; "
                "call it by itself to see where."
            ) from error
        name = reference.partition(":")[2]
        return from_object(result, name=name, source=reference, modality=modality)


def check_options(load: Callable[..., Any], options: Mapping[str, Any], name: str) -> None:
    """A SpecError if `load` does not take one of `options` by keyword."""
    try:
        parameters = inspect.signature(load).parameters.values()
    except (TypeError, ValueError):  # some built-in functions do not tell
        return
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    by_keyword = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    valid = [p.name for p in parameters if p.kind in by_keyword and p.name != "modality"]
    wrong = [option for option in options if option not in valid]
    if wrong:
        raise SpecError(f"{name} has no option '{wrong[0]}'; valid options: {', '.join(valid) or 'none'}.")


def _is_pair_list(data: tuple[Any, ...] | list[Any]) -> bool:
    """Two (input, label) pairs in a list, as opposed to (inputs, labels)."""
    return isinstance(data, list) and all(isinstance(item, tuple) and len(item) == 2 for item in data)


def _pairs(data: Any, name: str) -> tuple[torch.Tensor | np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    inputs: list[np.ndarray[Any, Any]] = []
    labels: list[int | float] = []
    try:
        for i in range(len(data)):
            item = data[i]
            if not isinstance(item, tuple | list) or len(item) != 2:
                raise DataError(
                    f"{name}: item {i} is a {type(item).__name__}; items must be (input, label) pairs."
                )
            inputs.append(
                np.asarray(item[0].detach().cpu() if isinstance(item[0], torch.Tensor) else item[0])
            )
            labels.append(item[1].item() if hasattr(item[1], "item") else item[1])
        if not inputs:
            raise DataError(f"{name}: the dataset is empty; give at least one example.")
        return np.stack(inputs), np.asarray(labels)
    except USER_CODE_ERRORS as error:
        raise DataError(
            f"{name}: items cannot be put into one array ({type(error).__name__}: {reason(error)}); "
            "make every item an (input, label) pair of equal shape."
        ) from error
