"""Convolutional networks without residuals, as the papers on gradient leakage use them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from torch import nn

from seepage.core.registry import lookup
from seepage.core.types import InputSpec
from seepage.models.shapes import image_shape, require_positive
from seepage.models.zoo.dense import dense_stack


def vgg_like(
    spec: InputSpec, *, filters: Sequence[int] = (128, 256, 512), width: int = 1000
) -> nn.Sequential:
    """The VGG-inspired CNN of Boenisch et al., Table 7. There is no pooling, hence its size:
    at 32x32 the first dense layer alone has 524,288 x 1000 weights (2 GB).
    """
    channels, height, width_px = image_shape(spec, "vgg_like")
    require_positive("vgg_like", filters=filters, width=width)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for index, num_filters in enumerate(filters):
        layers[f"conv{index}"] = nn.Conv2d(channels, num_filters, kernel_size=3, padding=1)  # p=same
        layers[f"conv_relu{index}"] = nn.ReLU()
        channels = num_filters
    layers.update(dense_stack(channels * height * width_px, (width,), spec.num_classes))
    return nn.Sequential(layers)


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}


def plain_convnet(
    spec: InputSpec, *, width: int = 16, depth: int = 4, strided: int = 2, activation: str = "relu"
) -> nn.Sequential:
    """A plain stack of 3x3 convolutions, all of one width, and a linear layer on all of their outputs.

    strided: how many of the first convolutions step by 2. Initialised as torch does, or with sigmoids as
    Zhu et al. do: after torch's small weights the gradient hardly depends on the picture (1 - cos of any two
    pictures' gradients is 1e-6), and single precision ends there.

    >>> from seepage.core.types import Modality
    >>> spec = InputSpec(modality=Modality.IMAGE, shape=(3, 32, 32), num_classes=10)
    >>> plain_convnet(spec).head
    Linear(in_features=1024, out_features=10, bias=True)
    """
    channels, height, width_px = image_shape(spec, "plain_convnet")
    require_positive("plain_convnet", width=width, depth=depth)
    build = lookup(ACTIVATIONS, activation, "activation")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for index in range(depth):
        stride = 2 if index < strided else 1
        layers[f"conv{index}"] = nn.Conv2d(channels, width, kernel_size=3, padding=1, stride=stride)
        layers[f"activation{index}"] = build()
        channels = width
        height, width_px = -(-height // stride), -(-width_px // stride)
    layers["flatten"] = nn.Flatten()
    layers["head"] = nn.Linear(channels * height * width_px, spec.num_classes)
    model = nn.Sequential(layers)
    if activation == "sigmoid":
        for parameter in model.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5)
    return model


def lenet_zhu(spec: InputSpec, *, channels: int = 12) -> nn.Sequential:
    """The sigmoid LeNet of Zhu et al., Deep Leakage from Gradients (2019): twice differentiable.

    All weights and biases are drawn from U(-0.5, 0.5) as there: with torch's smaller ones the
    sigmoids are nearly linear and the gradients nearly vanish.
    """
    in_channels, height, width_px = image_shape(spec, "lenet_zhu")
    require_positive("lenet_zhu", channels=channels)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for index, stride in enumerate((2, 2, 1)):
        layers[f"conv{index}"] = nn.Conv2d(in_channels, channels, kernel_size=5, padding=2, stride=stride)
        layers[f"sigmoid{index}"] = nn.Sigmoid()
        in_channels = channels
        height, width_px = -(-height // stride), -(-width_px // stride)  # padding 2 makes it a ceiling
    layers["flatten"] = nn.Flatten()
    layers["head"] = nn.Linear(channels * height * width_px, spec.num_classes)
    model = nn.Sequential(layers)
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return model


def convnet(spec: InputSpec, *, width: int = 64) -> nn.Sequential:
    """The ConvNet of Geiping et al., Inverting Gradients (2020): eight convolutions with batch norm,
    max-pools of 3 after the sixth and the eighth. Width 64 is their ConvNet64.

    >>> from seepage.core.types import Modality
    >>> model = convnet(InputSpec(modality=Modality.IMAGE, shape=(3, 32, 32), num_classes=10))
    >>> model.head
    Linear(in_features=2304, out_features=10, bias=True)
    """
    channels, height, width_px = image_shape(spec, "convnet", smallest=9)
    require_positive("convnet", width=width)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for index, multiple in enumerate((1, 2, 2, 4, 4, 4, 4, 4)):
        layers[f"conv{index}"] = nn.Conv2d(channels, multiple * width, kernel_size=3, padding=1)
        layers[f"bn{index}"] = nn.BatchNorm2d(multiple * width)
        layers[f"relu{index}"] = nn.ReLU()
        channels = multiple * width
        if index in (5, 7):
            layers[f"pool{index}"] = nn.MaxPool2d(3)
            height, width_px = height // 3, width_px // 3
    layers["flatten"] = nn.Flatten()
    layers["head"] = nn.Linear(channels * height * width_px, spec.num_classes)
    return nn.Sequential(layers)
