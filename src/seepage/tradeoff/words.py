"""Numbers as a reader wants them, the same on the page, in the terminal and in the advice."""

from __future__ import annotations

import math
import unicodedata

from seepage.tradeoff.leakage import Leak, Spread
from seepage.tradeoff.record import PointRecord

DASH = "–"
SPACE = "\N{NO-BREAK SPACE}"
UNITS = {"psnr": (" dB", 1), "rmse": (" spreads", 3)}
NAMES = {
    "psnr": "PSNR",
    "token_accuracy": "words right",
    "rmse": "RMSE",
    "cosine": "cosine",
    "exact": "exact",
}


def percent(value: float | None) -> str:
    """Never rounded up to 100 nor down to 0.

    >>> [percent(v).replace(SPACE, " ") for v in (0.5, 0.9999, 1e-9, None)]
    ['50.0 %', '> 99.9 %', '< 0.1 %', '–']
    """
    if value is None or not math.isfinite(value):
        return DASH
    if 0.999 < value < 1:
        return f">{SPACE}99.9{SPACE}%"
    if 0 < value < 0.001:
        return f"<{SPACE}0.1{SPACE}%"
    return f"{100 * value:.1f}{SPACE}%"


def accuracy_text(spread: Spread | None) -> str:
    """
    >>> accuracy_text(Spread(mean=0.5, deviation=0.01, seeds=2)).split()
    ['50.0', '±', '1.0', '%']
    """
    if spread is None:
        return DASH
    if spread.seeds == 1:
        return percent(spread.mean)
    return f"{100 * spread.mean:.1f}{SPACE}±{SPACE}{100 * spread.deviation:.1f}{SPACE}%"


def metric_text(leak: Leak) -> str:
    """The main metric beside the guess's: `PSNR 34.1 ± 2.0 dB (guess 14.2)`."""
    if leak.main is None:
        return ""
    unit, decimals = UNITS.get(leak.metric, ("", 2))
    spread = f" ± {leak.main.deviation:.{decimals}f}" if leak.main.seeds > 1 else ""
    guess = f" (guess {leak.baseline.mean:.{decimals}f})" if leak.baseline is not None else ""
    return f"{NAMES[leak.metric]} {leak.main.mean:.{decimals}f}{spread}{unit}{guess}"


def leak_text(leak: Leak) -> str:
    """`13 of 16 exact`, or why there is no figure."""
    if leak.main is None:
        return leak.status.replace("_", " ")
    return f"{leak.exact_count} of {leak.examples} exact"


def epsilon_text(value: float) -> str:
    """
    >>> epsilon_text(4.377), epsilon_text(41205.3), epsilon_text(0.1234)
    ('4.4', '41205', '0.12')
    """
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def promise_text(point: PointRecord) -> str:
    """Epsilon with everything it depends on; empty where there is none."""
    if point.epsilon is None or point.steps is None:
        return ""
    return (
        f"ε = {epsilon_text(point.epsilon)} at δ = {point.delta:g} for {point.protects}, "
        f"{point.steps} release{'s' if point.steps != 1 else ''} at sampling rate 1"
    )


def printable(text: str) -> str:
    """Without control characters: a name from a file must not steer the reader's terminal."""
    return "".join(c for c in text if unicodedata.category(c) not in {"Cc", "Cf", "Cs"})
