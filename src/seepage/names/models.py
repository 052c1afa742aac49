"""The models of the zoo."""

from __future__ import annotations

from seepage.core.registry import Entry

GROUP = "seepage.models"
"""Entry points under which a package offers more."""
_IMAGE, _TEXT, _NUMBERS = ("image",), ("text",), ("image", "tabular")


def _model(where: str, description: str, data: tuple[str, ...] = _IMAGE) -> Entry:
    """data: the kinds that it takes."""
    return Entry(where=where, description=description, facts={"data": data})


MODELS: dict[str, Entry] = {
    "mlp": _model("seepage.models.zoo.dense:mlp", "small fully connected network (256, 128)", _NUMBERS),
    "fcnn": _model(
        "seepage.models.zoo.dense:fcnn",
        "fully connected network of Boenisch et al., Table 7 (1000, 3000, 3000, 2000, 1000)",
        _NUMBERS,
    ),
    "vgg_like": _model(
        "seepage.models.zoo.convolutional:vgg_like",
        "three convolutions without pooling of Boenisch et al., Table 7 (2 GB at 32x32)",
    ),
    "lenet_zhu": _model(
        "seepage.models.zoo.convolutional:lenet_zhu",
        "sigmoid LeNet of Zhu et al., Deep Leakage from Gradients",
    ),
    "plain_convnet": _model(
        "seepage.models.zoo.convolutional:plain_convnet",
        "plain 3x3 convolutions: width, depth, number of strided ones and activation as wanted",
    ),
    "convnet": _model(
        "seepage.models.zoo.convolutional:convnet",
        "eight convolutions with batch norm of Geiping et al., Inverting Gradients (ConvNet64)",
    ),
    "resnet20": _model(
        "seepage.models.zoo.resnet:resnet20", "CIFAR ResNet-20; weights='pretrained' for CIFAR-10"
    ),
    "resnet32": _model(
        "seepage.models.zoo.resnet:resnet32", "CIFAR ResNet-32; weights='pretrained' for CIFAR-10"
    ),
    "resnet56": _model(
        "seepage.models.zoo.resnet:resnet56", "CIFAR ResNet-56; weights='pretrained' for CIFAR-10"
    ),
    "resnet18": _model(
        "seepage.models.zoo.resnet:resnet18", "ResNet-18, with a small stem for images of up to 64 pixels"
    ),
    "efficientnet_lite0": _model(
        "seepage.models.zoo.efficientnet:efficientnet_lite0",
        "EfficientNet-lite0 for photographs; weights='pretrained' for ImageNet (seepage[photos])",
    ),
    "irevnet": _model(
        "seepage.models.zoo.reversible:irevnet",
        "small reversible network (i-RevNet): features invert to the picture exactly",
    ),
    "vit": _model(
        "seepage.models.zoo.vit:vit",
        "small vision transformer with attention that can be differentiated twice",
    ),
    "imdb_net": _model(
        "seepage.models.zoo.text:imdb_net",
        "embedding and dense layer of Boenisch et al., Table 8, one logit for two classes",
        _TEXT,
    ),
    "text_classifier": _model(
        "seepage.models.zoo.text:text_classifier",
        "smaller embedding and dense layer, one output for each class",
        _TEXT,
    ),
}
