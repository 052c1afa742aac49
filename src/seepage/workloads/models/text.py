"""Text classifiers that read all positions at once: embedding, flatten, dense."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from seepage.errors import ModelError
from seepage.types import InputSpec
from seepage.workloads.models.dense import dense_stack
from seepage.workloads.models.shapes import require_positive, text_shape

KERAS_EMBEDDING_BOUND = 0.05
"""Keras draws an Embedding from U(-0.05, 0.05); torch would draw it from N(0, 1)."""


def _embed_and_classify(vocabulary: int, length: int, *, dim: int, width: int, outputs: int) -> nn.Sequential:
    embedding = nn.Embedding(vocabulary, dim)
    nn.init.uniform_(embedding.weight, -KERAS_EMBEDDING_BOUND, KERAS_EMBEDDING_BOUND)
    layers: OrderedDict[str, nn.Module] = OrderedDict(embedding=embedding)  # (n, length, dim)
    layers.update(dense_stack(length * dim, (width,), outputs))
    return nn.Sequential(layers)


def imdb_net(spec: InputSpec, *, dim: int = 250, width: int = 1000) -> nn.Sequential:
    """The IMDB model of Boenisch et al., Table 8: one logit for two classes.

    Table 8 names no Flatten, but Sec. 8 feeds the whole 250-token sentence to the first dense layer.

    >>> from seepage.types import Modality
    >>> spec = InputSpec(modality=Modality.TEXT, shape=(5,), num_classes=2, vocabulary=20)
    >>> imdb_net(spec, dim=4, width=3).dense0
    Linear(in_features=20, out_features=3, bias=True)
    """
    vocabulary, length = text_shape(spec, "imdb_net")
    require_positive("imdb_net", dim=dim, width=width)
    if spec.num_classes != 2:
        raise ModelError(
            f"model 'imdb_net' has a single logit for two classes, but the data have {spec.num_classes}; "
            "choose 'text_classifier'."
        )
    return _embed_and_classify(vocabulary, length, dim=dim, width=width, outputs=1)


def text_classifier(spec: InputSpec, *, dim: int = 32, width: int = 128) -> nn.Sequential:
    """A smaller one, with an output for each class."""
    vocabulary, length = text_shape(spec, "text_classifier")
    require_positive("text_classifier", dim=dim, width=width)
    return _embed_and_classify(vocabulary, length, dim=dim, width=width, outputs=spec.num_classes)
