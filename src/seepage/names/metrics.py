"""The metrics: what each is called, its unit and range, which way it leaks, and where its function is.

Nothing else in the package says any of this: specs, thresholds, records and every report read it here.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from seepage.core.metric import SHARE, MetricFacts
from seepage.core.registry import Entry

GROUP = "seepage.metrics"
"""Entry points under which a package offers more."""
METRICS: dict[str, MetricFacts] = {}
_PLAIN: dict[str, tuple[str, str]] = {
    "exact": ("Exact copies", "0 %: nobody's; 100 %: everybody's."),
    "psnr": (
        "Likeness of the picture",
        "Below about 15 dB: nothing to see; 20 dB: shapes; 30 dB: recognisable; 100 dB: identical.",
    ),
    "mse": ("Difference of the pictures", "0: identical."),
    "ssim": ("Likeness of structure", "0: unrelated; 0.5: shapes; 0.9: hard to tell apart; 1: identical."),
    "lpips": ("Difference to the eye", "0: identical; 0.2: much alike; 0.7: unrelated."),
    "registered_psnr": ("Likeness of the picture, wherever it lies", "As PSNR: 100 dB: identical."),
    "cw_ssim": ("Likeness of structure, wherever it lies", "0: unrelated; 1: identical."),
    "token_accuracy": ("Words in their place", "0 %: none; 100 %: the whole text."),
    "rouge_1": ("Words, in any place", "0 %: none; 100 %: all of them, and no others."),
    "rouge_2": ("Pairs of neighbouring words", "0 %: none; 100 %: the whole text."),
    "rouge_l": ("Words in their order", "0 %: none; 100 %: the whole text."),
    "bag_of_words_recall": ("Words, wherever they stand", "0 %: none; 100 %: every word."),
    "rmse": ("Difference of the rows", "0: identical; 1: off by as much as rows differ anyway."),
    "relative_error": ("Difference of the features", "0: identical; 1: no better than zero."),
    "cosine": ("Likeness of the features", "0: unrelated; 1: the same direction."),
    "extraction_precision_all": ("Parts of the update that show one example", "100 %: every row does."),
    "extraction_precision_active": (
        "Parts of the update in use that show one example",
        "100 %: every row that was used does.",
    ),
    "extraction_recall": ("Examples that can be read off the update", "100 %: every example."),
    "active_neurons": ("Parts of the update in use", "100 %: every row."),
    "label_accuracy": ("Classes known", "100 %: which classes, and how many of each."),
    "words_known": ("Vocabulary known", "100 %: every word, and no other."),
}
"""By name: what it is about in everyday words, and how to read a value. The steps between nothing and all are
rules of thumb for a reader; no verdict rests on them."""
ENTRIES: dict[str, Entry] = {}


def _metric(name: str, where: str, title: str, unit: str, description: str, **facts: Any) -> None:
    """where: inside seepage.metrics. A higher value leaks more unless `facts` say otherwise."""
    plain, scale = _PLAIN[name]
    given = {"higher_leaks": True, "plain": plain, "scale": scale, **facts}
    METRICS[name] = MetricFacts(name=name, title=title, unit=unit, description=description, **given)
    ENTRIES[name] = Entry(
        where=f"seepage.metrics.{where}",
        description=description,
        facts={"needs": METRICS[name].needs},
    )


_IMAGE = {"modalities": ("image",)}
_TEXT = {"modalities": ("text",)}
_ERROR = {"higher_leaks": False, "decimals": 3}
_DECIBELS = {"decimals": 1, "wide": 3.0}
"""3 dB are half the squared error: the margin that errors have in their own scale."""
_BATCH = {"level": "batch"}

_metric(
    "exact",
    "exact:exact_match",
    "Exact",
    SHARE,
    "The same example: no value is off by more than exact_tolerance of the data range; in a table, of its "
    "column's spread, and whole numbers and categories are equal.",
)
_metric(
    "psnr",
    "image:psnr",
    "PSNR",
    "dB",
    "Peak signal-to-noise ratio, at most 100 dB (an exact copy).",
    **_IMAGE,
    **_DECIBELS,
)
_metric(
    "mse",
    "image:mse",
    "MSE",
    "error",
    "Mean squared error of the pixels, in squared raw units.",
    higher_leaks=False,
    decimals=4,
    wide=2.0,
    **_IMAGE,
)
_metric("ssim", "image:ssim", "SSIM", "similarity", "Structural similarity; 1 is an exact copy.", **_IMAGE)
_metric(
    "lpips",
    "on_request:lpips",
    "LPIPS",
    "error",
    "Learned perceptual distance (AlexNet); 0 is an exact copy.",
    on_request=True,
    needs="torchvision, and AlexNet's weights in torch's hub cache",
    **_IMAGE,
    **_ERROR,
)
_metric(
    "registered_psnr",
    "on_request:registered_psnr",
    "Registered PSNR",
    "dB",
    "PSNR after the picture was moved into place (Wen et al. 2022), never below PSNR.",
    on_request=True,
    needs="the wen extra",
    **_IMAGE,
    **_DECIBELS,
)
_metric(
    "cw_ssim",
    "on_request:cw_ssim",
    "CW-SSIM",
    "similarity",
    "Complex-wavelet SSIM, blind to small shifts and to brightness.",
    limits=(0.0, 1.0),
    on_request=True,
    needs="the wen extra",
    **_IMAGE,
)
_metric(
    "token_accuracy",
    "text:token_accuracy",
    "Token accuracy",
    SHARE,
    "Share of the words that stand at their position.",
    **_TEXT,
)
_metric("rouge_1", "text:rouge_1", "ROUGE-1", SHARE, "ROUGE-1 F-measure: words found at all.", **_TEXT)
_metric("rouge_2", "text:rouge_2", "ROUGE-2", SHARE, "ROUGE-2 F-measure: neighbouring words found.", **_TEXT)
_metric(
    "rouge_l", "text:rouge_l", "ROUGE-L", SHARE, "ROUGE-L F-measure: words found in their order.", **_TEXT
)
_metric(
    "bag_of_words_recall",
    "text:bag_of_words_recall",
    "Words found",
    SHARE,
    "Share of the words found, in any order.",
    **_TEXT,
)
_metric(
    "rmse",
    "tabular:rmse",
    "RMSE",
    "spreads",
    "Root mean squared error of a row, in units of each column's spread.",
    modalities=("tabular",),
    **_ERROR,
)
_metric(
    "relative_error",
    "features:relative_error",
    "Relative error",
    "error",
    "L2 error of a layer's features over the L2 norm of the true ones.",
    space="features",
    **_ERROR,
)
_metric(
    "cosine",
    "features:cosine",
    "Cosine",
    "similarity",
    "Cosine similarity to a layer's true features.",
    space="features",
)
_metric(
    "extraction_precision_all",
    "leakage:extraction_scores",
    "Extraction precision, all neurons",
    SHARE,
    "Gradient rows that hold one example, among all rows (Boenisch et al. 2021, eq. 9).",
    **_BATCH,
)
_metric(
    "extraction_precision_active",
    "leakage:extraction_scores",
    "Extraction precision, active neurons",
    SHARE,
    "Gradient rows that hold one example, among active rows (as in Boenisch et al.'s tables).",
    **_BATCH,
)
_metric(
    "extraction_recall",
    "leakage:extraction_scores",
    "Extraction recall",
    SHARE,
    "True examples that some gradient row holds (Boenisch et al. 2021, eq. 10).",
    counts_examples=True,
    **_BATCH,
)
_metric(
    "active_neurons",
    "leakage:extraction_scores",
    "Active neurons",
    SHARE,
    "Gradient rows that at least one example activated, among all rows.",
    space="any",
    **_BATCH,
)
_metric(
    "label_accuracy",
    "labels:label_multiset_accuracy",
    "Labels inferred",
    SHARE,
    "Labels inferred, counted with their multiplicity.",
    space="any",
    counts_examples=True,
    **_BATCH,
)
_metric(
    "words_known",
    "text:words_known",
    "Words known",
    SHARE,
    "Which tokens the texts hold, in any place: F-measure of the set.",
    modalities=("text",),
    **_BATCH,
)

LEADING = ("psnr", "mse", "token_accuracy", "rouge_l", "rmse", "relative_error", "cosine")
"""What a verdict rests on: of pictures, texts, rows and a layer's features, the first that is there."""
BESIDE = {"image": "ssim", "text": "rouge_l"}
"""By modality, the one shown beside it."""


def leading(present: Container[str], modality: str = "") -> MetricFacts:
    """The metric that leads among those present; where none is, the one that such data would have.

    >>> leading({"exact", "ssim", "psnr"}).name, leading((), "tabular").name, leading(()).name
    ('psnr', 'rmse', 'exact')
    """
    there = (name for name in LEADING if name in present)
    usual = (name for name in LEADING if modality in METRICS[name].modalities)
    return METRICS[next(there, None) or next(usual, "exact")]


def facts_of(name: str) -> MetricFacts:
    """What is said of a metric; one that this version does not know goes by its own name.

    >>> facts_of("lpips").higher_leaks, facts_of("my_count").title
    (False, 'my count')
    """
    return METRICS.get(name) or MetricFacts(
        name=name, title=name.replace("_", " "), description="", higher_leaks=True, decimals=3
    )
