"""The names under which scores are recorded, and what each means: METRICS."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

from seepage.metrics.exact import EXACT_TOLERANCE
from seepage.metrics.image import PSNR_CAP, lpips_available
from seepage.metrics.registered import registered_psnr_available
from seepage.metrics.wavelet import SCALES, cw_ssim_available
from seepage.types import Modality

_ALL = frozenset(Modality)
_IMAGE = frozenset({Modality.IMAGE})
_TEXT = frozenset({Modality.TEXT})
_TABULAR = frozenset({Modality.TABULAR})


@dataclass(frozen=True)
class Metric:
    """What a recorded score means. `level`: one value per example, or one per batch."""

    name: str
    description: str
    higher_is_better: bool
    """Better for the attacker: more of the data came back."""
    level: Literal["example", "batch"]
    modalities: frozenset[Modality]
    unit: str = ""
    reach: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest value that there can be: a threshold outside of it would never be reached."""
    space: Literal["input", "features", "any"] = "input"
    """What it is measured on: inputs, a layer's features, or whatever the attack rebuilt."""
    on_request: bool = False
    """Too costly for every audit: computed by the paper tables that need it."""
    note: str = ""
    """Why the metric cannot be had here; empty when it can."""


_CATALOGUE = (
    Metric(
        "exact",
        f"The same example: no value is off by more than {EXACT_TOLERANCE:g} of the data range; in a table, "
        "of its column's spread, and whole numbers and categories are equal.",
        True,
        "example",
        _ALL,
    ),
    Metric(
        "mse",
        "Mean squared error of the pixels, in squared raw units.",
        False,
        "example",
        _IMAGE,
        reach=(0.0, inf),
    ),
    Metric(
        "psnr",
        f"Peak signal-to-noise ratio, at most {PSNR_CAP:g} dB (an exact copy).",
        True,
        "example",
        _IMAGE,
        "dB",
        reach=(-inf, PSNR_CAP),
    ),
    Metric("ssim", "Structural similarity; 1 is an exact copy.", True, "example", _IMAGE, reach=(-1.0, 1.0)),
    Metric(
        "lpips",
        "Learned perceptual distance (AlexNet); 0 is an exact copy.",
        False,
        "example",
        _IMAGE,
        reach=(0.0, inf),
        on_request=True,
        note=lpips_available()[1],
    ),
    Metric(
        "registered_psnr",
        "PSNR after the picture was moved into place (Wen et al. 2022), never below PSNR; only on request.",
        True,
        "example",
        _IMAGE,
        "dB",
        reach=(-inf, PSNR_CAP),
        on_request=True,
        note=registered_psnr_available()[1],
    ),
    Metric(
        "cw_ssim",
        f"Complex-wavelet SSIM, blind to small shifts and to brightness, {SCALES} scales; only on request.",
        True,
        "example",
        _IMAGE,
        on_request=True,
        note=cw_ssim_available()[1],
    ),
    Metric("token_accuracy", "Fraction of the words that stand at their position.", True, "example", _TEXT),
    Metric("rouge_l", "ROUGE-L F-measure: words found in their order.", True, "example", _TEXT),
    Metric("bag_of_words_recall", "Fraction of the words found, in any order.", True, "example", _TEXT),
    Metric(
        "rmse",
        "Root mean squared error of a row, in units of each column's spread.",
        False,
        "example",
        _TABULAR,
        "spreads",
        reach=(0.0, inf),
    ),
    Metric(
        "relative_error",
        "L2 error of a layer's features over the L2 norm of the true ones.",
        False,
        "example",
        _ALL,
        reach=(0.0, inf),
        space="features",
    ),
    Metric(
        "cosine",
        "Cosine similarity to a layer's true features.",
        True,
        "example",
        _ALL,
        reach=(-1.0, 1.0),
        space="features",
    ),
    Metric(
        "extraction_precision_all",
        "Gradient rows that hold one example, among all rows (Boenisch et al. 2021, eq. 9).",
        True,
        "batch",
        _ALL,
    ),
    Metric(
        "extraction_precision_active",
        "Gradient rows that hold one example, among active rows (as in Boenisch et al.'s tables).",
        True,
        "batch",
        _ALL,
    ),
    Metric(
        "extraction_recall",
        "True examples that some gradient row holds (Boenisch et al. 2021, eq. 10).",
        True,
        "batch",
        _ALL,
    ),
    Metric(
        "active_neurons",
        "Gradient rows that at least one example activated, among all rows.",
        True,
        "batch",
        _ALL,
        space="any",
    ),
    Metric(
        "label_accuracy",
        "Labels inferred, counted with their multiplicity.",
        True,
        "batch",
        _ALL,
        space="any",
    ),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in _CATALOGUE}
