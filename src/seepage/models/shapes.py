"""What a builder may ask of an `InputSpec`, answered with one sentence where it does not fit."""

from __future__ import annotations

import math
from collections.abc import Sequence

from seepage.core.errors import ModelError
from seepage.core.types import InputSpec, Modality


def image_shape(spec: InputSpec, model: str, *, smallest: int = 1) -> tuple[int, int, int]:
    """(channels, height, width) of an image spec at least `smallest` pixels high and wide.

    >>> image_shape(InputSpec(modality=Modality.IMAGE, shape=(3, 32, 32), num_classes=10), "convnet")
    (3, 32, 32)
    """
    if spec.modality is not Modality.IMAGE or len(spec.shape) != 3:
        raise ModelError(
            f"model '{model}' takes images of shape (channels, height, width), but the data are "
            f"{spec.modality.value} examples of shape {spec.shape}; choose a model for {spec.modality.value} "
            "data (`seepage list`)."
        )
    channels, height, width = spec.shape
    if min(height, width) < smallest:
        raise ModelError(
            f"model '{model}' needs images of at least {smallest}x{smallest} pixels, but the data are "
            f"{height}x{width}; choose a smaller model such as 'mlp', or resize the images."
        )
    return channels, height, width


def flat_size(spec: InputSpec, model: str) -> int:
    """Number of values of one image or one row.

    >>> flat_size(InputSpec(modality=Modality.TABULAR, shape=(14,), num_classes=2), "mlp")
    14
    """
    if spec.modality is Modality.TEXT:
        raise ModelError(
            f"model '{model}' takes numbers, but the data are token ids of shape {spec.shape}; "
            "choose a model with an embedding, such as 'text_classifier'."
        )
    return math.prod(spec.shape)


def text_shape(spec: InputSpec, model: str) -> tuple[int, int]:
    """(vocabulary, tokens per example) of a text spec."""
    if spec.modality is not Modality.TEXT or len(spec.shape) != 1:
        raise ModelError(
            f"model '{model}' takes token ids of shape (length,), but the data are "
            f"{spec.modality.value} examples of shape {spec.shape}; choose a model for {spec.modality.value} "
            "data (`seepage list`)."
        )
    if spec.vocabulary is None:
        raise ModelError(
            f"model '{model}' needs the size of the vocabulary, which the input spec does not give; "
            "set InputSpec.vocabulary to the number of token ids."
        )
    return spec.vocabulary, spec.shape[0]


def require_positive(model: str, **sizes: int | Sequence[int]) -> None:
    """Refuse sizes that are not positive whole numbers, or not lists of them.

    >>> require_positive("mlp", hidden=(256, 0))
    Traceback (most recent call last):
    seepage.core.errors.ModelError: model 'mlp': hidden must be positive whole numbers, not (256, 0).
    """
    for name, size in sizes.items():
        # A string is a sequence too, but of characters: it fails the check on whole numbers below.
        values = size if isinstance(size, Sequence) else (size,)
        if not all(isinstance(v, int) and not isinstance(v, bool) and v > 0 for v in values):
            wanted = "positive whole numbers" if isinstance(size, Sequence) else "a positive whole number"
            raise ModelError(f"model '{model}': {name} must be {wanted}, not {size!r}.")
