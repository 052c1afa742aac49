"""The models an audit can name. `MODELS` is the catalogue; `loading.build_model` builds from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from seepage.types import Modality
from seepage.workloads.models import convolutional, dense, efficientnet, resnet, reversible, text, vit


@dataclass(frozen=True, kw_only=True)
class ModelEntry:
    """One model: `build(spec, *, keyword hyperparameters)`, a line about it, and the data it takes."""

    build: Callable[..., nn.Module]
    description: str
    modalities: frozenset[Modality]


_IMAGE = frozenset({Modality.IMAGE})
_TEXT = frozenset({Modality.TEXT})
_NUMBERS = frozenset({Modality.IMAGE, Modality.TABULAR})

MODELS: dict[str, ModelEntry] = {
    "mlp": ModelEntry(
        build=dense.mlp,
        description="small fully connected network (256, 128)",
        modalities=_NUMBERS,
    ),
    "fcnn": ModelEntry(
        build=dense.fcnn,
        description="fully connected network of Boenisch et al., Table 7 (1000, 3000, 3000, 2000, 1000)",
        modalities=_NUMBERS,
    ),
    "vgg_like": ModelEntry(
        build=convolutional.vgg_like,
        description="three convolutions without pooling of Boenisch et al., Table 7 (2 GB at 32x32)",
        modalities=_IMAGE,
    ),
    "lenet_zhu": ModelEntry(
        build=convolutional.lenet_zhu,
        description="sigmoid LeNet of Zhu et al., Deep Leakage from Gradients",
        modalities=_IMAGE,
    ),
    "convnet": ModelEntry(
        build=convolutional.convnet,
        description="eight convolutions with batch norm of Geiping et al., Inverting Gradients (ConvNet64)",
        modalities=_IMAGE,
    ),
    "resnet20": ModelEntry(
        build=resnet.resnet20,
        description="CIFAR ResNet-20; weights='pretrained' for CIFAR-10",
        modalities=_IMAGE,
    ),
    "resnet32": ModelEntry(
        build=resnet.resnet32,
        description="CIFAR ResNet-32; weights='pretrained' for CIFAR-10",
        modalities=_IMAGE,
    ),
    "resnet56": ModelEntry(
        build=resnet.resnet56,
        description="CIFAR ResNet-56; weights='pretrained' for CIFAR-10",
        modalities=_IMAGE,
    ),
    "resnet18": ModelEntry(
        build=resnet.resnet18,
        description="ResNet-18, with a small stem for images of up to 64 pixels",
        modalities=_IMAGE,
    ),
    "efficientnet_lite0": ModelEntry(
        build=efficientnet.efficientnet_lite0,
        description="EfficientNet-lite0 for photographs; weights='pretrained' for ImageNet (seepage[photos])",
        modalities=_IMAGE,
    ),
    "irevnet": ModelEntry(
        build=reversible.irevnet,
        description="small reversible network (i-RevNet): features invert to the picture exactly",
        modalities=_IMAGE,
    ),
    "vit": ModelEntry(
        build=vit.vit,
        description="small vision transformer with attention that can be differentiated twice",
        modalities=_IMAGE,
    ),
    "imdb_net": ModelEntry(
        build=text.imdb_net,
        description="embedding and dense layer of Boenisch et al., Table 8, one logit for two classes",
        modalities=_TEXT,
    ),
    "text_classifier": ModelEntry(
        build=text.text_classifier,
        description="smaller embedding and dense layer, one output for each class",
        modalities=_TEXT,
    ),
}
