"""The bundled datasets, against the packages' own loaders and published counts."""

from __future__ import annotations

import importlib.resources
import socket
from statistics import NormalDist

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.preprocessing import StandardScaler

from seepage.core.errors import SpecError
from seepage.core.types import Modality
from seepage.data import DATASETS, load_data, standardised

EMBEDDED = ["faces", "photos", "digits", "breast_cancer"]


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("an embedded dataset opened a network connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.parametrize("name", EMBEDDED)
def test_loads_the_same_twice_and_names_no_path(name: str) -> None:
    first, second = load_data(name), load_data(name)
    assert torch.equal(first.inputs, second.inputs)
    assert torch.equal(first.labels, second.labels)
    assert first.source.startswith("scikit-")
    assert "/" not in first.source
    assert DATASETS.entry(name).facts == {"modality": first.spec.modality, "needs": "nothing"}


def test_faces_are_the_hundred_first_of_scikit_image() -> None:
    from skimage.data import lfw_subset

    data = load_data("faces")
    np.testing.assert_allclose(data.inputs[:, 0].numpy(), lfw_subset(), atol=1e-7)
    assert data.labels.tolist() == [1] * 100 + [0] * 100


def test_digits_are_sklearns_divided_by_16() -> None:
    data, bundle = load_data("digits"), load_digits()
    assert data.inputs.shape == (1797, 1, 8, 8)
    np.testing.assert_array_equal(data.inputs[:, 0].numpy() * 16, bundle.images)
    assert data.labels.tolist() == bundle.target.tolist()


def spread_by_hand(column: np.ndarray) -> float:
    """The standard deviation, or the shortest interval with more than half of the values if that is less."""
    half = len(column) // 2 + 1
    ordered = sorted(column.tolist())
    shortest = min(ordered[i + half - 1] - ordered[i] for i in range(len(ordered) - half + 1))
    return min(float(column.std()), shortest / (2 * NormalDist().inv_cdf(0.75)))


def test_breast_cancer_is_raw_inside_and_standardised_for_the_model() -> None:
    data, bundle = load_data("breast_cancer"), load_breast_cancer()
    np.testing.assert_allclose(data.inputs.numpy(), bundle.data, rtol=1e-6)
    everything = torch.arange(len(data))
    batch = standardised(data, everything).batch(everything)
    np.testing.assert_allclose(
        data.spec.spread, [spread_by_hand(column) for column in bundle.data.T], rtol=1e-5
    )
    np.testing.assert_allclose(batch.inputs.numpy(), StandardScaler().fit_transform(bundle.data), atol=1e-4)
    assert data.spec.modality is Modality.TABULAR
    assert data.spec.column_names == tuple(bundle.feature_names)
    assert data.spec.class_names == ("malignant", "benign")
    assert torch.bincount(data.labels).tolist() == [212, 357]


@pytest.mark.parametrize("size", [32, 64, 128, 224, 300])
def test_photos_come_in_every_size_from_every_photograph(size: int) -> None:
    data = load_data("photos", size=size)
    assert data.inputs.shape[1:] == (3, size, size)
    assert torch.bincount(data.labels, minlength=8).min() >= 1
    assert data.inputs.std(dim=(2, 3)).mean(1).min() >= 0.05  # no flat crop


def test_photo_crops_do_not_overlap_and_come_from_the_shrunk_photograph() -> None:
    data = load_data("photos", size=32)
    path = importlib.resources.files("skimage.data") / "astronaut.png"
    with path.open("rb") as file:
        shrunk = Image.open(file).convert("RGB").resize((128, 128), Image.Resampling.BICUBIC)
    expected = torch.from_numpy(np.array(shrunk)).permute(2, 0, 1) / 255
    tiles = expected.unfold(1, 32, 32).unfold(2, 32, 32).permute(1, 2, 0, 3, 4).reshape(16, 3, 32, 32)
    astronaut = data.inputs[data.labels == data.spec.class_names.index("astronaut")]
    torch.testing.assert_close(astronaut, tiles)


def test_photos_differ_from_each_other() -> None:
    flat = load_data("photos").inputs.flatten(1)
    distance = torch.cdist(flat, flat) + 1e9 * torch.eye(len(flat))
    assert float(distance.min()) > 0.5


@pytest.mark.parametrize("size", [0, 7, 301, 32.0, True, "32"])
def test_photos_refuse_a_size_they_cannot_give(size: object) -> None:
    with pytest.raises(SpecError, match="from 8 to 300"):
        load_data("photos", size=size)
