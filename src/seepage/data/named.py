"""Well-known datasets by name: from the folder in SEEPAGE_DATA (or `root=`), else from the hub.

Values stay in [0, 1] as in Boenisch et al.; `normalise=True` has the model fed (x - mean) / std instead.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from seepage.core.errors import DataError, SpecError
from seepage.core.types import Modality
from seepage.core.user_code import UNREADABLE
from seepage.data.arrays import from_arrays
from seepage.data.dataset import Dataset
from seepage.data.files import read_npz
from seepage.data.hub import HubRows, HubSource, hub_pictures
from seepage.data.photo_index import select_photos
from seepage.data.pictures import check_positive, read_pictures
from seepage.data.text import SPECIAL, encode, most_frequent, words

FOLDER_VARIABLE = "SEEPAGE_DATA"
Statistics = tuple[tuple[float, ...], tuple[float, ...]]
MNIST_STATISTICS: Statistics = ((0.1307,), (0.3081,))
IMAGENET_STATISTICS: Statistics = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CIFAR100_STATISTICS: Statistics = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
_TRAIN_TEST = {"train": "train", "test": "test"}
_PHOTO_FOLDERS = ("photos/imagenet_1000", "imagenet_photos", "imagenet")


@dataclass(frozen=True)
class _Pictures:
    """One set of small pictures: its files by split, the keys in them, and its place on the hub."""

    name: str
    files: Mapping[str, Sequence[str]]
    keys: Mapping[str, tuple[str, str]]
    names: str | tuple[str, ...]
    """Class names, or the key they are stored under."""
    mode: str
    statistics: Statistics
    hub: HubSource

    def load(self, *, split: str, normalise: bool, root: str | Path | None) -> Dataset:
        _check_split(self.name, split, self.files)
        path = _find(self.files[split], root)
        if path is None:
            rows = HubRows(self.hub, split=split, file=self.files[split][0])
            pixels: Any
            labels: Any
            pixels, labels = hub_pictures(rows, mode=self.mode)
            names: Sequence[str] = rows.class_names
            source = f"Hugging Face hub: {self.hub.repository} ({split})"
        else:
            stored = [self.names] if isinstance(self.names, str) else []
            arrays = read_npz(path, [*([key] for key in self.keys[split]), *([key] for key in stored)])
            pixels, labels = (arrays[key] for key in self.keys[split])
            names = arrays[self.names].tolist() if isinstance(self.names, str) else self.names
            source = f"{_folder_name(root)}: {self.name} ({path.name})"
        dataset = from_arrays(
            pixels, labels, name=self.name, source=source, modality=Modality.IMAGE, class_names=names
        )
        return _normalised(dataset, self.statistics) if normalise else dataset


def mnist(*, split: str = "test", normalise: bool = False, root: str | Path | None = None) -> Dataset:
    """Handwritten digits, grey 28x28."""
    return _Pictures(
        name="mnist",
        files={
            "test": ("mnist/mnist_test.npz",),
            "train": ("mnist/mnist_train.npz", "mnist/mnist_train10k.npz"),
        },
        keys=dict.fromkeys(("test", "train"), ("images", "labels")),
        names=tuple(str(digit) for digit in range(10)),
        mode="L",
        statistics=MNIST_STATISTICS,
        hub=HubSource("ylecun/mnist", "image", "label", _TRAIN_TEST),
    ).load(split=split, normalise=normalise, root=root)


def cifar10(*, split: str = "test", normalise: bool = False, root: str | Path | None = None) -> Dataset:
    """Colour pictures 32x32 in 10 classes.

    `normalise` uses ImageNet's mean and std: the published CIFAR ResNets were trained with them.
    """
    return _Pictures(
        name="cifar10",
        files={"test": ("cifar10/cifar10_test.npz",), "train": ("cifar10/cifar10_train.npz",)},
        keys=dict.fromkeys(("test", "train"), ("images", "labels")),
        names="class_names",
        mode="RGB",
        statistics=IMAGENET_STATISTICS,
        hub=HubSource("uoft-cs/cifar10", "img", "label", _TRAIN_TEST),
    ).load(split=split, normalise=normalise, root=root)


def cifar100(
    *,
    split: str = "test",
    labels: Literal["fine", "coarse"] = "fine",
    normalise: bool = False,
    root: str | Path | None = None,
) -> Dataset:
    """Colour pictures 32x32 in 100 classes, or with labels="coarse" in 20."""
    if labels not in ("fine", "coarse"):
        raise SpecError(f"cifar100 has no labels '{labels}'; give 'fine' (100 classes) or 'coarse' (20).")
    files = ("cifar100/cifar100.npz", "cifar100/cifar100_part.npz")
    return _Pictures(
        name="cifar100",
        files={"test": files, "train": files},
        keys={split: (f"{split}_images", f"{split}_{labels}") for split in ("test", "train")},
        names=f"{labels}_names",
        mode="RGB",
        statistics=CIFAR100_STATISTICS,
        hub=HubSource("uoft-cs/cifar100", "img", f"{labels}_label", _TRAIN_TEST),
    ).load(split=split, normalise=normalise, root=root)


def imagenet_photos(
    *, size: int = 224, limit: int | None = 200, normalise: bool = False, root: str | Path | None = None
) -> Dataset:
    """Photographs in the 1000 ImageNet classes, cut to size x size.

    From a folder: pictures smaller than `size` are left out, and `limit` of the rest are taken, evenly
    spread over labels.csv without any seed (decoding all 1000 takes long; limit=None does it). From the
    hub: the first `limit` of the validation split, which needs an account with access to ImageNet.
    """
    check_positive("size", size)
    check_positive("limit", limit)
    index = _find([f"{folder}/labels.csv" for folder in _PHOTO_FOLDERS], root)
    pixels: np.ndarray[Any, Any]
    if index is None:
        hub = HubSource("ILSVRC/imagenet-1k", "image", "label", {"test": "validation"})
        rows = HubRows(hub, split="test", file=f"{_PHOTO_FOLDERS[0]}/labels.csv", streaming=True)
        pixels, labels = hub_pictures(rows, mode="RGB", size=size, limit=limit)
        names, source = rows.class_names, f"Hugging Face hub: {hub.repository} (validation)"
    else:
        files, labels, names = select_photos(index, size=size, limit=limit)
        pixels = read_pictures(files, size=size, mode="RGB")
        source = f"{_folder_name(root)}: imagenet_photos ({index.parent.name})"
    dataset = from_arrays(
        pixels, labels, name="imagenet_photos", source=source, layout="HWC", class_names=names
    )
    return _normalised(dataset, IMAGENET_STATISTICS) if normalise else dataset


def imdb(
    *, split: str = "train", length: int = 250, vocabulary: int = 10_000, root: str | Path | None = None
) -> Dataset:
    """Film reviews, label 1 for positive ones: `length` tokens out of `vocabulary`, as in Boenisch et al.

    Words are ranked over the reviews loaded. Id 0 is padding, 1 an unknown word. A corpus with fewer
    words than `vocabulary` gets the smaller vocabulary it has.
    """
    check_positive("length", length)
    check_positive("vocabulary", vocabulary)
    if vocabulary <= len(SPECIAL):
        raise SpecError(f"imdb: vocabulary is {vocabulary}, and ids 0 and 1 are taken; give 3 or more.")
    files = {
        "train": ("imdb/imdb_train.jsonl.gz", "imdb/imdb_5000.jsonl.gz"),
        "test": ("imdb/imdb_test.jsonl.gz",),
    }
    _check_split("imdb", split, files)
    path = _find(files[split], root)
    if path is None:
        hub = HubSource("stanfordnlp/imdb", "text", "label", _TRAIN_TEST)
        rows = HubRows(hub, split=split, file=files[split][0])
        reviews = [(words(row["text"]), int(row["label"])) for row in rows]
        source = f"Hugging Face hub: {hub.repository} ({split})"
    else:
        reviews = _read_reviews(path)
        source = f"{_folder_name(root)}: imdb ({path.name})"
    corpus = [review for review, _ in reviews]
    tokens = most_frequent(corpus, vocabulary=vocabulary)
    return from_arrays(
        encode(corpus, tokens, length=length),
        [label for _, label in reviews],
        name="imdb",
        source=source,
        modality=Modality.TEXT,
        tokens=tokens,
        class_names=("negative", "positive"),
    )


def _read_reviews(path: Path) -> list[tuple[list[str], int]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            rows = [json.loads(line) for line in file if line.strip()]
        return [(words(row["text"]), int(row["label"])) for row in rows]
    except UNREADABLE as error:
        raise DataError(
            f"{path.name} cannot be read ({type(error).__name__}); "
            "give gzipped JSON lines with the fields text and label."
        ) from None


def _check_split(name: str, split: str, valid: Mapping[str, Any]) -> None:
    if split not in valid:
        raise SpecError(f"{name} has no split '{split}'; give split='train' or split='test'.")


def _find(candidates: Sequence[str], root: str | Path | None) -> Path | None:
    """The first of `candidates` that exists in the data folder."""
    folder = root if root is not None else os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return None
    if not Path(folder).is_dir():
        which = FOLDER_VARIABLE if root is None else "root"
        raise DataError(f"{which} names a folder that does not exist; correct it or leave it unset.")
    return next((p for p in (Path(folder) / c for c in candidates) if p.is_file()), None)


def _folder_name(root: str | Path | None) -> str:
    return FOLDER_VARIABLE if root is None else f"folder {Path(root).name}"


def _normalised(dataset: Dataset, statistics: Statistics) -> Dataset:
    mean, std = statistics
    return replace(dataset, spec=replace(dataset.spec, mean=mean, std=std))
