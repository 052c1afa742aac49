"""Numbers as a reader wants them, the same on the page, in the terminal and in the advice."""

from __future__ import annotations

import math
import unicodedata

from seepage.log import Estimate
from seepage.tradeoff.leakage import Leak, value_of
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


def share_text(estimate: Estimate | None) -> str:
    """
    >>> share_text(Estimate.of_counts([(10, 20), (30, 60)])).split()
    ['50.0', '%', '(38.6', 'to', '61.4)']
    """
    ends = range_text(estimate)
    return f"{share(estimate)} ({ends})" if ends else share(estimate)


def share(estimate: Estimate | None) -> str:
    """Without its interval."""
    return percent(value_of(estimate))


def range_text(estimate: Estimate | None) -> str:
    """The 95 % interval of a share in percent, without the sign; empty for a single value and for none.

    >>> range_text(Estimate.of_counts([(0, 60)])).split()
    ['0.0', 'to', '6.0']
    """
    if estimate is None or estimate.n < 2 or math.isnan(estimate.low):
        return ""
    return f"{100 * estimate.low:.1f}{SPACE}to{SPACE}{100 * estimate.high:.1f}"


def metric_text(leak: Leak) -> str:
    """The main metric beside the guess's: `PSNR 34.1 dB, 30.2 to 38.0 (guess 14.2)`."""
    if leak.main is None:
        return ""
    unit, decimals = UNITS.get(leak.metric, ("", 2))
    main = leak.main
    ends = f", {main.low:.{decimals}f} to {main.high:.{decimals}f}" if main.n > 1 else ""
    guess = f" (guess {leak.baseline.value:.{decimals}f})" if leak.baseline is not None else ""
    return f"{NAMES[leak.metric]} {main.value:.{decimals}f}{unit}{ends}{guess}"


def leak_text(leak: Leak) -> str:
    """`13 of 16 exact`, or why there is no figure."""
    if leak.main is None:
        return leak.status.replace("_", " ")
    of = "" if leak.space == INPUT_SPACE else f" (features of layer '{leak.space}')"
    return f"{leak.exact_count} of {leak.examples} exact{of}"


def printable(text: str) -> str:
    """Without control characters: a name from a file must not steer the reader's terminal."""
    return "".join(c for c in text if unicodedata.category(c) not in {"Cc", "Cf", "Cs"})
