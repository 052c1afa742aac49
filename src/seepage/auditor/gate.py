"""The `fail_on` thresholds of a spec: for use in continuous integration."""

from __future__ import annotations

from collections.abc import Mapping

from seepage.log import BASELINE, AuditLog, summarise
from seepage.metrics import METRICS


def exceeded(log: AuditLog, thresholds: Mapping[str, float]) -> list[str]:
    """One sentence for every attack whose mean score is at least as good for the server as a threshold."""
    found = []
    for summary in summarise(log):
        if summary.attack.name == BASELINE:
            continue
        for metric, threshold in thresholds.items():
            if metric not in summary.scores:
                continue
            mean = summary.scores[metric].mean
            worse = mean >= threshold if METRICS[metric].higher_is_better else mean <= threshold
            if worse:
                relation = "at or above" if METRICS[metric].higher_is_better else "at or below"
                found.append(
                    f"{summary.attack.title}: {metric} is {mean:.4g}, {relation} the threshold {threshold:g}."
                )
    return found
