"""Trained CIFAR-10 weights on real test images; needs the folder named by SEEPAGE_DATA."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from seepage.core.types import InputSpec, Modality
from seepage.models.loading import build_model, check_forward

DATA = os.environ.get("SEEPAGE_DATA")
TEST_IMAGES = Path(DATA or "") / "cifar10" / "cifar10_test.npz"
WEIGHTS = Path(DATA or "") / "weights" / "cifar10_resnet20.pt"

pytestmark = pytest.mark.skipif(
    not DATA or not TEST_IMAGES.is_file() or not WEIGHTS.is_file(),
    reason="SEEPAGE_DATA names no folder with cifar10/cifar10_test.npz and weights/cifar10_resnet20.pt",
)

SPEC = InputSpec(
    modality=Modality.IMAGE,
    shape=(3, 32, 32),
    num_classes=10,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
)


def test_resnet20_is_as_accurate_as_published() -> None:
    with np.load(TEST_IMAGES, allow_pickle=False) as archive:
        images, labels = archive["images"][:1000], torch.from_numpy(archive["labels"][:1000]).long()
    raw = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    model = build_model("resnet20", SPEC, weights="pretrained").eval()
    with torch.no_grad():
        predicted = model(SPEC.to_model(raw)).argmax(1)
    assert float((predicted == labels).float().mean()) >= 0.91


@pytest.mark.parametrize("name", ["resnet20", "resnet32", "resnet56"])
def test_named_weights_fit(name: str) -> None:
    if not (WEIGHTS.parent / f"cifar10_{name}.pt").is_file():
        pytest.skip(f"SEEPAGE_DATA has no weights/cifar10_{name}.pt")
    assert check_forward(build_model(name, SPEC, weights="pretrained"), SPEC) == (2, 10)
