"""A metric is a function of rebuilt and true examples, with the words and units that reports need."""

from __future__ import annotations

from torch import Tensor

from seepage.core.metric import Metric
from seepage.core.types import InputSpec


def brightness_error(recon: Tensor, truth: Tensor, spec: InputSpec) -> Tensor:
    """(n,): how far the mean of each picture (n, C, H, W) is off."""
    return (recon - truth).flatten(1).mean(dim=1).abs()


BRIGHTNESS = Metric(
    title="Brightness error",
    description="How far the mean brightness of a picture is off.",
    higher_leaks=False,
    unit="error",
    modalities=("image",),
    compute=brightness_error,
)
