"""Text classifiers that read all positions at once: embedding, flatten, dense."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

from seepage.core.errors import ModelError
from seepage.core.types import InputSpec
from seepage.models.shapes import require_positive, text_shape
from seepage.models.zoo.dense import dense_stack

KERAS_EMBEDDING_BOUND = 0.05
"""Derived: Keras draws an Embedding from U(-0.05, 0.05); torch would draw it from N(0, 1)."""


def _embed_and_classify(
    vocabulary: int, length: int, *, dim: int, width: int, outputs: int, positive: bool = False
) -> nn.Sequential:
    embedding = nn.Embedding(vocabulary, dim)
    nn.init.uniform_(embedding.weight, -KERAS_EMBEDDING_BOUND, KERAS_EMBEDDING_BOUND)
    if positive:  # by a generator of its own, so that nothing else of the model changes
        generator = torch.Generator().manual_seed(torch.initial_seed())
        nn.init.uniform_(embedding.weight, 0.0, 1.0, generator=generator)
    layers: OrderedDict[str, nn.Module] = OrderedDict(embedding=embedding)  # (n, length, dim)
    layers.update(dense_stack(length * dim, (width,), outputs))
    return nn.Sequential(layers)


def imdb_net(spec: InputSpec, *, dim: int = 250, width: int = 1000, positive: bool = False) -> nn.Sequential:
    """The IMDB model of Boenisch et al., Table 8: one logit for two classes.

    Table 8 names no Flatten, but Sec. 8 feeds the whole 250-token sentence to the first dense layer.
    positive: embeddings from U(0, 1), as Sec. 8 draws them, in place of Keras' U(-0.05, 0.05).

    >>> from seepage.core.types import Modality
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
    return _embed_and_classify(vocabulary, length, dim=dim, width=width, outputs=1, positive=positive)


def text_classifier(spec: InputSpec, *, dim: int = 32, width: int = 128) -> nn.Sequential:
    """A smaller one, with an output for each class."""
    vocabulary, length = text_shape(spec, "text_classifier")
    require_positive("text_classifier", dim=dim, width=width)
    return _embed_and_classify(vocabulary, length, dim=dim, width=width, outputs=spec.num_classes)
