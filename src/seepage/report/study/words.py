"""What an attack got at one point of a study, in words."""

from __future__ import annotations

from seepage.core.types import INPUT_SPACE
from seepage.names.metrics import facts_of
from seepage.report.study.leakage import Leak
from seepage.report.words import text, with_interval


def metric_text(leak: Leak) -> str:
    """The main metric beside the guess's: `PSNR 34.1 dB (30.2 to 38.0), guess 14.2`."""
    if leak.main is None:
        return ""
    metric = facts_of(leak.metric)
    guess = f", guess {text(metric, leak.baseline.value)}" if leak.baseline is not None else ""
    return f"{metric.title} {with_interval(leak.main, metric)}{guess}"


def leak_text(leak: Leak) -> str:
    """`13 of 16 exact`, or why there is no figure."""
    if leak.main is None:
        return leak.status.replace("_", " ")
    of = "" if leak.space == INPUT_SPACE else f" (features of layer '{leak.space}')"
    return f"{leak.exact_count} of {leak.examples} exact{of}"
