"""Fully connected networks, for images and rows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from seepage.core.types import InputSpec
from seepage.models.shapes import flat_size, require_positive


def dense_stack(features: int, hidden: Sequence[int], num_outputs: int) -> OrderedDict[str, nn.Module]:
    """flatten, then dense0, relu0, dense1, relu1, ..., head.

    >>> list(dense_stack(4, (3, 2), 10))
    ['flatten', 'dense0', 'relu0', 'dense1', 'relu1', 'head']
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for index, width in enumerate(hidden):
        layers[f"dense{index}"] = nn.Linear(features, width)
        layers[f"relu{index}"] = nn.ReLU()
        features = width
    layers["head"] = nn.Linear(features, num_outputs)
    return layers


def fcnn(
    spec: InputSpec, *, width: int = 1000, hidden: Sequence[int] = (3000, 3000, 2000, 1000)
) -> nn.Sequential:
    """The FC-NN of Boenisch et al., Table 7. `width` is the layer that their attack reads.

    >>> from seepage.core.types import Modality
    >>> spec = InputSpec(modality=Modality.TABULAR, shape=(14,), num_classes=2)
    >>> fcnn(spec, width=8, hidden=(4,)).dense0
    Linear(in_features=14, out_features=8, bias=True)
    """
    require_positive("fcnn", width=width, hidden=hidden)
    return nn.Sequential(dense_stack(flat_size(spec, "fcnn"), (width, *hidden), spec.num_classes))


def mlp(spec: InputSpec, *, hidden: Sequence[int] = (256, 128)) -> nn.Sequential:
    """A small fully connected network."""
    require_positive("mlp", hidden=hidden)
    return nn.Sequential(dense_stack(flat_size(spec, "mlp"), hidden, spec.num_classes))
