"""Datasets: the catalogue, and `load_data`, the one way in."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from seepage.core.errors import DataError, SpecError
from seepage.core.registry import REFERENCE, Registry, unknown
from seepage.core.types import Modality
from seepage.data.columns import Columns, standardised, with_columns
from seepage.data.dataset import Dataset, as_numbers, validate
from seepage.data.files import file_loader
from seepage.data.named import FOLDER_VARIABLE
from seepage.data.objects import check_options, from_function, from_object
from seepage.names import data as names

__all__ = ["DATASETS", "Dataset", "as_numbers", "check_name", "load_data", "standardised", "validate"]

DATASETS: Registry[Callable[..., Any]] = Registry(
    "dataset", group=names.GROUP, entries=names.DATASETS, function=True
)
BUILT_IN = "seepage:"
"""Before a name: the dataset of the catalogue, whatever lies in the current folder."""
Numbers = float | Sequence[float]


def load_data(
    reference: Any,
    *,
    modality: Modality | str | None = None,
    value_range: Sequence[float] | None = None,
    mean: Numbers | None = None,
    std: Numbers | None = None,
    num_classes: int | None = None,
    categories: Sequence[Sequence[int]] | None = None,
    integer: Columns | None = None,
    real: Columns | None = None,
    standardise: bool | None = None,
    classes: Sequence[str] | None = None,
    last: int | None = None,
    **options: Any,
) -> Dataset:
    """A validated dataset from a name, a path, "package.module:function", or an object.

    A name that is also a file or folder here is refused: "seepage:photos" means the dataset, "./photos" the
    folder. The named keywords say what cannot be read off the data (or correct what was guessed); `options`
    go to the loader. `mean` and `std`, one number or one per channel or column, have the model fed normalised
    values.

    Of tables: `categories` are groups of columns that are one category in one-hot code. `integer` and `real`
    name columns, which are found by looking otherwise. `standardise` has the model fed columns of mean 0 and
    spread 1, by rows that are nobody's (`standardised`); it is on for CSV files and built-in tables, where
    columns are raw, and off for arrays, which a model may have been trained on as they are.

    `classes` leaves the examples of these classes, by name, and `last` the last so many of what is left.

    >>> len(load_data("digits")), load_data("photos", size=64).spec.shape
    (1797, (3, 64, 64))
    >>> load_data("digit")
    Traceback (most recent call last):
    ...
    seepage.core.errors.SpecError: unknown dataset 'digit': did you mean 'digits'? Valid: breast_cancer, \
cifar10, cifar100, digits, faces, imagenet_photos, imdb, mnist, photos. A path (.npz, .csv, a folder of \
pictures) or "package.module:function" is accepted too.
    """
    dataset = _load(reference, _modality(modality), options)
    dataset = validate(_declare(dataset, value_range, mean, std, num_classes, categories))
    dataset = with_columns(dataset, integer=integer, real=real, standardise=standardise)
    return dataset if classes is None and last is None else _part(dataset, classes, last)


def _part(dataset: Dataset, classes: Sequence[str] | None, last: int | None) -> Dataset:
    """Some of the examples, the description of one unchanged."""
    index = torch.arange(len(dataset))
    if classes is not None:
        names = dataset.spec.class_names
        for name in classes:
            if name not in names:
                raise DataError(f"{dataset.name}: {unknown('class', name, names)}")
        wanted = torch.tensor([names.index(name) for name in classes])
        index = index[torch.isin(dataset.labels, wanted)]
    if last is not None:
        if isinstance(last, bool) or last < 1:
            raise SpecError(f"last is {last}; give a whole number of examples, at least 1.")
        index = index[-last:]
    held: dict[str, Any] = {
        name: None if (one := getattr(dataset, name)) is None else one[index]
        for name in ("inputs", "labels", "owners", "targets")
    }
    return validate(replace(dataset, **held))


def _load(reference: Any, modality: Modality | None, options: dict[str, Any]) -> Dataset:
    if isinstance(reference, Dataset) and options:
        raise SpecError(f"a Dataset is used as it is; leave out the option '{next(iter(options))}'.")
    if not isinstance(reference, str | os.PathLike):
        check_options(from_object, options, "data passed in from Python")
        return _agreeing(from_object(reference, modality=modality, **options), modality)
    text = os.fspath(reference)
    if isinstance(reference, str) and (text in DATASETS.entries() or text.startswith(BUILT_IN)):
        name = text.removeprefix(BUILT_IN)
        check_name(text)
        if name in DATASETS:
            check_options(DATASETS[name], options, name)
            return _agreeing(DATASETS[name](**options), modality)
        text = DATASETS.entry(name).where
    if REFERENCE.fullmatch(text):
        return _agreeing(from_function(text, modality=modality, **options), modality)
    return _load_path(text, modality, options)


def check_name(text: str, folder: Path | None = None) -> None:
    """Refuse a name that is not in the catalogue, or that is also what a file or folder here is called.

    `folder`: where to look, in place of the current one.

    >>> check_name("seepage:digit")
    Traceback (most recent call last):
    ...
    seepage.core.errors.SpecError: unknown dataset 'digit': did you mean 'digits'? Valid: breast_cancer, \
cifar10, cifar100, digits, faces, imagenet_photos, imdb, mnist, photos.
    """
    if text.startswith(BUILT_IN):
        DATASETS.entry(text.removeprefix(BUILT_IN))
        return
    path = Path(text) if folder is None else folder / text
    if text in DATASETS.entries() and path.exists() and not _is_its_own(text, path):
        kind = "folder" if path.is_dir() else "file"
        shown = os.path.relpath(path)
        here = shown if os.sep in shown else f".{os.sep}{shown}"
        raise SpecError(
            f"data = '{text}' is the name of a built-in dataset and of a {kind} beside this audit: write "
            f"'{BUILT_IN}{text}' for the dataset, or '{here}' for the {kind}."
        )


def _is_its_own(name: str, path: Path) -> bool:
    """The folder in SEEPAGE_DATA that this dataset is read from anyway."""
    data = os.environ.get(FOLDER_VARIABLE)
    if not data or DATASETS.entry(name).facts.get("needs", "nothing") == "nothing":
        return False
    return path.resolve().parent == Path(data).resolve()


def _load_path(text: str, modality: Modality | None, options: dict[str, Any]) -> Dataset:
    path = Path(text).expanduser() if text.startswith("~/") else Path(text)
    try:
        if not text or (path.name == text and not path.suffix and not path.exists()):
            hint = 'A path (.npz, .csv, a folder of pictures) or "package.module:function" is accepted too.'
            DATASETS.entry(text, hint=hint)
        path = path if path.name else path.resolve()  # "." and ".." have no name to report
        load = file_loader(path)
        check_options(load, options, path.name)
        return load(path, modality=modality, **options)
    except OSError as error:
        shown = error.strerror or type(error).__name__
        raise DataError(
            f"{path.name[:60]} cannot be opened ({shown}); check the path and its rights."
        ) from None


def _modality(given: Modality | str | None) -> Modality | None:
    try:
        return None if given is None else Modality(given)
    except ValueError:
        raise SpecError(unknown("modality", str(given), [m.value for m in Modality])) from None


def _agreeing(dataset: Dataset, modality: Modality | None) -> Dataset:
    if modality not in (None, dataset.spec.modality):
        raise SpecError(f"{dataset.name} is {dataset.spec.modality} data; leave out modality='{modality}'.")
    return dataset


def _declare(
    dataset: Dataset,
    value_range: Sequence[float] | None,
    mean: Numbers | None,
    std: Numbers | None,
    num_classes: int | None,
    categories: Sequence[Sequence[int]] | None,
) -> Dataset:
    """The dataset with what the caller said about it in place of what was guessed."""
    spec = dataset.spec
    if value_range is not None:
        pair = _numbers("value_range", value_range, count=2)
        if len(pair) != 2:
            raise SpecError(
                f"value_range has {len(pair)} numbers; give the lowest and the highest raw value."
            )
        spec = replace(spec, value_range=(pair[0], pair[1]))
    if mean is not None:
        spec = replace(spec, mean=_numbers("mean", mean, count=spec.shape[0]))
    if std is not None:
        spec = replace(spec, std=_numbers("std", std, count=spec.shape[0]))
    if num_classes is not None:
        if isinstance(num_classes, bool) or not isinstance(num_classes, int) or num_classes < 2:
            raise SpecError(f"num_classes is {num_classes!r}; give a whole number of at least 2.")
        known = spec.class_names[:num_classes]
        more = tuple(f"class {i}" for i in range(len(known), num_classes)) if known else ()
        spec = replace(spec, num_classes=num_classes, class_names=known + more)
    if categories is not None:
        spec = replace(spec, categories=_groups(categories))
    return replace(dataset, spec=spec)


def _groups(given: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    try:
        return tuple(tuple(operator.index(column) for column in group) for group in given)
    except TypeError:
        raise SpecError(
            f"categories is {given!r}; give groups of column numbers, as [[0, 1, 2], [3, 4]]."
        ) from None


def _numbers(name: str, given: Numbers, *, count: int) -> tuple[float, ...]:
    """One number for all, or a sequence, as a tuple of floats."""
    try:
        return (float(given),) * count if isinstance(given, int | float) else tuple(float(v) for v in given)
    except (TypeError, ValueError):
        raise SpecError(f"{name} is {given!r}; give a number or a list of numbers.") from None
