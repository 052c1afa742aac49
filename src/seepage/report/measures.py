"""What the figures in a log are called, which way is worse for the client, and what counts as far ahead."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from math import isclose, sqrt
from typing import Literal

from seepage.log import AttackSummary, Estimate, Header
from seepage.report.words import number

Lead = Literal["far", "ahead", "none"]


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One metric: its words and its direction. `wide` is the margin that counts as far ahead of a guess."""

    key: str
    title: str
    unit: str = ""
    decimals: int = 2
    higher_leaks: bool = True
    wide: float = 0.2
    """Added when higher leaks; a factor when lower leaks."""

    @property
    def words(self) -> str:
        """The title inside a sentence: abbreviations keep their capitals."""
        return self.title if self.title.partition("-")[0].isupper() else self.title.lower()

    def text(self, value: float) -> str:
        return number(value, self.decimals)

    def with_unit(self, value: float) -> str:
        return f"{self.text(value)} {self.unit}".rstrip()

    def range_text(self, estimate: Estimate) -> str:
        """
        >>> MEASURES["psnr"].range_text(Estimate.of([[100.0] * 20] * 3, "dB"))
        'all equal'
        """
        if isclose(estimate.low, estimate.high, rel_tol=1e-9):
            return "all equal"  # "100.0 to 100.0" would promise too much
        return f"{self.text(estimate.low)} to {self.text(estimate.high)}"

    def gain(self, value: float, guess: float, *, margins: float = 0.0) -> float:
        """How far `value` leaks more than a guess that was better by `margins` wide margins.

        >>> MEASURES["psnr"].gain(20.0, 17.5), MEASURES["mse"].gain(0.1, 0.4, margins=1)
        (2.5, 0.2)
        """
        return (
            value - guess - margins * self.wide if self.higher_leaks else guess - value * self.wide**margins
        )

    def beats(self, value: float, guess: float, *, margins: float = 0.0) -> bool:
        """Whether `value` leaks more than `guess` by at least `margins` wide margins.

        >>> MEASURES["psnr"].beats(20.0, 17.5, margins=1), MEASURES["rmse"].beats(0.1, 0.2, margins=1)
        (False, True)
        """
        return self.gain(value, guess) > 0 and self.gain(value, guess, margins=margins) >= 0


_ALL = (
    # 3 dB are half the mean squared error; the error metrics below get the same margin in their own scale.
    Measure(key="psnr", title="PSNR", unit="dB", decimals=1, wide=3.0),
    Measure(key="ssim", title="SSIM"),
    Measure(key="mse", title="MSE", decimals=4, higher_leaks=False, wide=2.0),
    Measure(key="rmse", title="RMSE", decimals=3, higher_leaks=False, wide=sqrt(2)),
    Measure(key="token_accuracy", title="Token accuracy"),
    Measure(key="rouge_l", title="ROUGE-L"),
    Measure(key="relative_error", title="Relative error", decimals=3, higher_leaks=False, wide=sqrt(2)),
    Measure(key="cosine", title="Cosine"),
    Measure(key="exact", title="Exact"),
    Measure(key="extraction_precision_all", title="Extraction precision, all neurons"),
    Measure(key="extraction_precision_active", title="Extraction precision, active neurons"),
    Measure(key="extraction_recall", title="Extraction recall"),
    Measure(key="active_neurons", title="Active neurons"),
    Measure(key="label_accuracy", title="Labels inferred"),
)
MEASURES = {measure.key: measure for measure in _ALL}
MAIN = {"image": ("psnr", "mse"), "text": ("token_accuracy", "rouge_l"), "tabular": ("rmse", "mse")}
SECOND = {"image": "ssim", "text": "rouge_l", "tabular": None}
FEATURES = ("relative_error", "cosine")


def measure(key: str) -> Measure:
    """The words for a metric; one this version does not know is shown under its own name."""
    return MEASURES.get(key) or Measure(key=key, title=key.replace("_", " "), decimals=3)


def main_measure(header: Header, space: str, present: Container[str]) -> Measure:
    """The metric that leads: the first of the modality's (or the feature space's) that the log has."""
    wanted = MAIN[header.input.modality] if space == "input" else FEATURES
    return MEASURES[next((key for key in wanted if key in present), wanted[0])]


def summary_measure(header: Header, summary: AttackSummary) -> Measure:
    """The leading metric of one attack's summary."""
    return main_measure(header, summary.space, summary.scores)
