"""Datasets by name: from a made-up folder, from a made-up hub, and (where SEEPAGE_DATA is set) for real."""

from __future__ import annotations

import csv
import gzip
import json
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from seepage.core.errors import DataError, SpecError
from seepage.data import load_data

REAL = os.environ.get("SEEPAGE_DATA", "")
real = pytest.mark.skipif(not Path(REAL or "absent").is_dir(), reason="SEEPAGE_DATA is not set to a folder")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEEPAGE_DATA", str(tmp_path))
    return tmp_path


def write_npz(path: Path, **arrays: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    np.savez(path, **arrays)


def test_mnist_from_the_folder(folder: Path) -> None:
    images = np.arange(2 * 28 * 28, dtype=np.uint32).reshape(2, 28, 28).astype(np.uint8)
    write_npz(folder / "mnist/mnist_test.npz", images=images, labels=np.array([7, 2], dtype=np.uint8))
    data = load_data("mnist", normalise=True)
    assert data.inputs.shape == (2, 1, 28, 28)
    assert data.spec.num_classes == 10  # though only two digits occur
    np.testing.assert_allclose(data.inputs[:, 0].numpy() * 255, images, atol=1e-4)
    expected = (images / 255 - 0.1307) / 0.3081
    np.testing.assert_allclose(data.batch(torch.arange(2)).inputs[:, 0].numpy(), expected, atol=1e-5)
    assert data.source == "SEEPAGE_DATA: mnist (mnist_test.npz)"


def test_root_goes_before_the_environment_and_its_path_is_not_told(tmp_path: Path, folder: Path) -> None:
    root = tmp_path / "mine"
    root.mkdir()
    pixels = np.zeros((1, 32, 32, 3), dtype=np.uint8)
    names = np.array([f"c{i}" for i in range(10)])
    write_npz(root / "cifar10/cifar10_test.npz", images=pixels, labels=np.array([9]), class_names=names)
    data = load_data("cifar10", root=root)
    assert data.source == "folder mine: cifar10 (cifar10_test.npz)"
    assert data.spec.class_names[9] == "c9"


@pytest.mark.parametrize("labels", ["fine", "coarse"])
def test_cifar100_reads_its_own_key_names(folder: Path, labels: str) -> None:
    arrays: dict[str, Any] = {}
    for shift, split in enumerate(("test", "train")):
        arrays[f"{split}_images"] = np.full((1, 32, 32, 3), shift, dtype=np.uint8)
        arrays[f"{split}_fine"], arrays[f"{split}_coarse"] = np.array([50 + shift]), np.array([5 + shift])
    names = {"fine_names": np.array([str(i) for i in range(100)]), "coarse_names": np.array(["x"] * 20)}
    write_npz(folder / "cifar100/cifar100_part.npz", **arrays, **names)
    data = load_data("cifar100", split="train", labels=labels)
    assert data.labels.tolist() == [{"fine": 51, "coarse": 6}[labels]]
    assert data.spec.num_classes == {"fine": 100, "coarse": 20}[labels]
    assert float(data.inputs.max()) == pytest.approx(1 / 255)


def write_photos(folder: Path, rows: list[tuple[int, str, int, int]]) -> None:
    photos = folder / "photos/imagenet_1000"
    photos.mkdir(parents=True)
    with (photos / "labels.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["class_index", "name", "file", "orig_width", "orig_height"])
        for index, name, width, height in rows:
            writer.writerow([index, name, f"{name}.png", width, height])
            Image.new("RGB", (width, height), (index * 10, 0, 0)).save(photos / f"{name}.png")


def test_imagenet_photos_leaves_out_small_ones_and_spreads_the_limit(folder: Path) -> None:
    write_photos(folder, [(i, f"p{i}", 20, 40 if i % 5 else 15) for i in range(10)])
    data = load_data("imagenet_photos", size=16, limit=4)
    assert data.labels.tolist() == [1, 3, 6, 8]  # every second of 1 2 3 4 6 7 8 9
    assert data.inputs.shape == (4, 3, 16, 16)
    np.testing.assert_allclose(data.inputs[:, 0, 8, 8].numpy() * 255, [10, 30, 60, 80], atol=1e-4)
    assert data.spec.num_classes == 10
    assert len(load_data("imagenet_photos", size=16, limit=None)) == 8
    with pytest.raises(DataError, match="give a smaller size"):
        load_data("imagenet_photos", size=64)


def write_reviews(folder: Path, rows: list[Any]) -> None:
    (folder / "imdb").mkdir()
    with gzip.open(folder / "imdb/imdb_5000.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def test_imdb_by_hand(folder: Path) -> None:
    write_reviews(
        folder, [{"label": 1, "text": "Good, GOOD film!<br />fun"}, {"label": 0, "text": "bad film zzz"}]
    )
    data = load_data("imdb", length=3, vocabulary=5)
    # film and good occur twice (alphabet decides), then bad, fun, zzz once: only bad still fits
    assert data.spec.tokens == ("<pad>", "<unk>", "film", "good", "bad")
    assert data.inputs.tolist() == [[3, 2, 1], [4, 2, 1]]  # the first review keeps its last three words
    assert load_data("imdb", length=5, vocabulary=5).inputs[1].tolist() == [0, 0, 4, 2, 1]
    assert load_data("imdb").spec.vocabulary == 7  # no more words than the corpus has
    assert data.spec.class_names == ("negative", "positive")


@pytest.mark.parametrize(
    ("name", "options", "error", "sentence"),
    [
        ("mnist", {"split": "validation"}, SpecError, "no split 'validation'"),
        ("imdb", {"vocabulary": 2}, SpecError, "give 3 or more"),
        ("imdb", {"length": 0}, SpecError, "above zero"),
        ("cifar100", {"labels": "medium"}, SpecError, "'fine' (100 classes)"),
        ("imagenet_photos", {"size": -1}, SpecError, "above zero"),
        ("mnist", {"root": "no/such/folder"}, DataError, "does not exist"),
        ("mnist", {"colour": True}, SpecError, "valid options: split, normalise, root"),
    ],
)
def test_wrong_options(name: str, options: dict[str, Any], error: type[Exception], sentence: str) -> None:
    with pytest.raises(error) as raised:
        load_data(name, **options)
    assert sentence in str(raised.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"not gzip", gzip.compress(b"{not json"), gzip.compress(b'{"a": 1}\n')],
    ids=["empty", "not gzip", "not JSON", "no review"],  # compressed bytes hold the time
)
def test_broken_reviews(folder: Path, content: bytes) -> None:
    (folder / "imdb").mkdir()
    (folder / "imdb/imdb_5000.jsonl.gz").write_bytes(content)
    with pytest.raises(DataError):
        load_data("imdb")


class FakeHub(ModuleType):
    """Stands for the `datasets` library: same call, rows of PIL pictures, ClassLabel names."""

    def __init__(self, rows: list[dict[str, Any]] | Exception, column: str, names: list[str]) -> None:
        super().__init__("datasets")
        self.rows, self.calls = rows, []  # type: ignore[var-annotated]
        self.features = {column: SimpleNamespace(names=names)}

        class DatasetsError(Exception):
            pass

        self.exceptions = SimpleNamespace(DatasetsError=DatasetsError)

    def load_dataset(self, repository: str, *, split: str, streaming: bool) -> Any:
        self.calls.append((repository, split, streaming))
        if isinstance(self.rows, Exception):
            raise self.rows

        class Rows(list):  # type: ignore[type-arg]
            features = self.features

        return Rows(self.rows)


@pytest.fixture
def no_folder(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv("SEEPAGE_DATA", raising=False)
    return monkeypatch


def test_without_folder_and_library_the_remedy_names_both(no_folder: pytest.MonkeyPatch) -> None:
    no_folder.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError) as error:
        load_data("mnist")
    assert "set SEEPAGE_DATA to a folder with mnist/mnist_test.npz" in str(error.value)
    assert "pip install 'seepage[hub]'" in str(error.value)


def test_hub_pictures_are_the_pixels_it_sent(no_folder: pytest.MonkeyPatch) -> None:
    picture = Image.new("RGB", (32, 32), (51, 102, 204))
    hub = FakeHub([{"img": picture, "label": 3}], "label", [f"c{i}" for i in range(10)])
    no_folder.setitem(sys.modules, "datasets", hub)
    data = load_data("cifar10", split="train")
    assert hub.calls == [("uoft-cs/cifar10", "train", False)]
    torch.testing.assert_close(data.inputs[0, :, 0, 0], torch.tensor([0.2, 0.4, 0.8]))
    assert data.labels.tolist() == [3]
    assert data.spec.class_names[3] == "c3"
    assert data.source == "Hugging Face hub: uoft-cs/cifar10 (train)"


def test_hub_photos_skip_small_ones_and_stop_at_the_limit(no_folder: pytest.MonkeyPatch) -> None:
    rows = [{"image": Image.new("L", (side, side)), "label": i} for i, side in enumerate((8, 20, 20, 20))]
    hub = FakeHub(rows, "label", [str(i) for i in range(1000)])
    no_folder.setitem(sys.modules, "datasets", hub)
    data = load_data("imagenet_photos", size=16, limit=2)
    assert data.labels.tolist() == [1, 2]
    assert data.inputs.shape == (2, 3, 16, 16)
    assert hub.calls == [("ILSVRC/imagenet-1k", "validation", True)]


def test_hub_reviews(no_folder: pytest.MonkeyPatch) -> None:
    hub = FakeHub([{"text": "a b", "label": 1}, {"text": "b", "label": 0}], "label", ["neg", "pos"])
    no_folder.setitem(sys.modules, "datasets", hub)
    assert load_data("imdb", length=2).inputs.tolist() == [[3, 2], [0, 2]]


@pytest.mark.parametrize("kind", [ConnectionError, FileNotFoundError, ValueError, "own"])
def test_hub_out_of_reach_is_one_sentence(no_folder: pytest.MonkeyPatch, kind: Any) -> None:
    hub = FakeHub([], "label", [])
    hub.rows = (hub.exceptions.DatasetsError if kind == "own" else kind)("a\nlong\nstory")
    no_folder.setitem(sys.modules, "datasets", hub)
    with pytest.raises(
        DataError, match="check the network and the access rights, or set SEEPAGE_DATA"
    ) as error:
        load_data("mnist")
    assert "\n" not in str(error.value)


# Published counts: LeCun's MNIST test set; 1000 per class in CIFAR-10's; 2500 per label in the IMDB file.
@real
@pytest.mark.parametrize(
    ("name", "options", "shape", "histogram"),
    [
        ("mnist", {}, (10000, 1, 28, 28), [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]),
        (
            "mnist",
            {"split": "train"},
            (10000, 1, 28, 28),
            [1001, 1127, 991, 1032, 980, 863, 1014, 1070, 944, 978],
        ),
        ("cifar10", {"normalise": True}, (10000, 3, 32, 32), [1000] * 10),
        ("imdb", {}, (5000, 250), [2500, 2500]),
    ],
)
def test_real_shapes_and_histograms(
    name: str, options: dict[str, Any], shape: tuple[int, ...], histogram: list[int]
) -> None:
    data = load_data(name, **options)
    assert tuple(data.inputs.shape) == shape
    assert torch.bincount(data.labels).tolist() == histogram
    assert REAL not in data.source


@real
def test_real_mnist_begins_as_published() -> None:
    assert load_data("mnist").labels[:5].tolist() == [7, 2, 1, 0, 4]
    assert load_data("mnist", split="train").labels[:5].tolist() == [5, 0, 4, 1, 9]


@real
@pytest.mark.parametrize(("split", "count"), [("test", 916), ("train", 486)])
def test_real_cifar100(split: str, count: int) -> None:
    fine, coarse = load_data("cifar100", split=split), load_data("cifar100", split=split, labels="coarse")
    assert len(fine) == len(coarse) == count
    assert (fine.spec.num_classes, coarse.spec.num_classes) == (100, 20)
    # every fine class belongs to exactly one coarse class
    parents = {(int(f), int(c)) for f, c in zip(fine.labels, coarse.labels, strict=True)}
    assert len(parents) == len(fine.labels.unique())


@real
def test_real_photos() -> None:
    data = load_data("imagenet_photos", size=32, limit=20)
    assert data.inputs.shape == (20, 3, 32, 32)
    assert data.spec.num_classes == 1000
    assert data.spec.class_names[:2] == ("tench", "goldfish")


@real
def test_real_photos_too_small_for_224_are_counted_as_in_the_sources() -> None:
    from seepage.data.photo_index import select_photos

    files, labels, _ = select_photos(Path(REAL) / "photos/imagenet_1000/labels.csv", size=224, limit=None)
    assert len(files) == len(labels) == 1000 - 66


@real
def test_real_reviews_can_be_read_back() -> None:
    data = load_data("imdb")
    assert data.spec.vocabulary == 10_000
    assert data.spec.tokens[2:5] == ("the", "and", "a")
    words = [data.spec.tokens[i] for i in data.inputs[0].tolist()]
    assert " ".join(words[-6:]) == "its time and place 2 10"
