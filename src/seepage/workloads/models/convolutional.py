"""Convolutional networks without residuals, as the papers on gradient leakage use them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from seepage.types import InputSpec
from seepage.workloads.models.dense import dense_stack
from seepage.workloads.models.shapes import image_shape, require_positive


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

    >>> from seepage.types import Modality
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
