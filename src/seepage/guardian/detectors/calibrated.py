"""From a detector's number to its verdict: thresholds and false-alarm rates measured on honest models.

`calibration.json` is written by `python -m research.guard.calibrate`, never by hand.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from seepage.core.errors import NotApplicable
from seepage.core.types import Broadcast, Detector, Finding, Verdict
from seepage.guardian.detectors.layers import WeightLayer, same_draws, weight_layers


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a detector measured: the higher the score, the less it looks like an honest model."""

    score: float
    layer: str | None
    evidence: str
    exact: bool = False
    """The structure itself was found, up to rounding. A statistic alone may say "suspicious" at most: some
    honest model has a larger one."""


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Exceeded by at most one in a hundred calibration models, over all detectors together."""

    suspicious: float


Measure = Callable[[Sequence[WeightLayer]], Reading]

_scores_only: ContextVar[bool] = ContextVar("scores_only", default=False)


@contextmanager
def scores_only() -> Iterator[None]:
    """Inside, every score counts as an alarm, and the same rows are drawn each time: for calibrating."""
    token = _scores_only.set(True)
    try:
        with same_draws(0):
            yield
    finally:
        _scores_only.reset(token)


@cache
def calibration() -> dict[str, Any]:
    """The shipped measurement: thresholds, false-alarm rates, detection rates and ROC points."""
    text = (
        resources.files("seepage.guardian.detectors").joinpath("calibration.json").read_text(encoding="utf-8")
    )
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def thresholds(name: str) -> Thresholds:
    """Of one detector.

    >>> thresholds("trap_rows").suspicious > 0
    True
    """
    if _scores_only.get():
        return Thresholds(suspicious=-math.inf)
    return Thresholds(suspicious=calibration()["thresholds"][name])


def judge(reading: Reading, limits: Thresholds) -> Finding:
    """The verdict that a score deserves."""
    verdict = Verdict.CLEAN
    if reading.score > limits.suspicious:
        verdict = Verdict.TRAP if reading.exact else Verdict.SUSPICIOUS
    return Finding(verdict=verdict, evidence=reading.evidence, score=reading.score, layer=reading.layer)


def weight_detector(name: str, measure: Measure) -> Detector:
    """A detector that looks at weights alone."""

    def detect(broadcast: Broadcast) -> Finding:
        return judge(measure(weight_layers(broadcast.model)), thresholds(name))

    return detect


def most_striking(readings: Sequence[Reading], *, needs: str) -> Reading:
    """The highest score of several layers; NotApplicable, with what was missing, where there is none."""
    if not readings:
        raise NotApplicable(f"the model has no {needs}, so this could not be checked.")
    return max(readings, key=lambda reading: reading.score)
