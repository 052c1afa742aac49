"""Numbers as a reader wants them, the same on the page, in the terminal and in the advice."""

from __future__ import annotations

import math
import unicodedata

from seepage.tradeoff.leakage import Leak, Spread
from seepage.types import INPUT_SPACE

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
    of = "" if leak.space == INPUT_SPACE else f" (features of layer '{leak.space}')"
    return f"{leak.exact_count} of {leak.examples} exact{of}"


def printable(text: str) -> str:
    """Without control characters: a name from a file must not steer the reader's terminal."""
    return "".join(c for c in text if unicodedata.category(c) not in {"Cc", "Cf", "Cs"})
