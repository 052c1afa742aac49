"""What a score means, and a metric of one's own: readable without torch, so that records and reports can."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from seepage.core.errors import SpecError

if TYPE_CHECKING:
    from torch import Tensor

    from seepage.core.types import InputSpec

MODALITIES = ("image", "text", "tabular")
SHARE = "share"
"""The unit of what lies between none and all; a reader sees it in percent."""
PSNR_CAP = 100.0
"""PSNR of an exact copy, in dB. Truly it is infinite, which JSON cannot hold and a mean does not survive;
100 dB is an error of 1e-5 of the range, beyond what 8 or 16 bits can show."""
RANGES: dict[str, tuple[float, float]] = {
    SHARE: (0.0, 1.0),
    "similarity": (-1.0, 1.0),
    "dB": (-math.inf, PSNR_CAP),
    "error": (0.0, math.inf),
    "spreads": (0.0, math.inf),
    "seconds": (0.0, math.inf),
    "count": (0.0, math.inf),
    "": (-math.inf, math.inf),
}
"""By unit, where its values can lie: no interval leaves it. A unit that is not here may lie anywhere."""
_UNSHOWN = {SHARE, "similarity", "error", "count"}
"""Units that say what a value is and are not written behind it."""


@dataclass(frozen=True, kw_only=True)
class MetricFacts:
    """All that is said of a metric in specs, records and reports."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid", "ser_json_inf_nan": "strings"}

    name: str = ""
    """As it is written in a spec and in a record; a metric from outside gets the one that it was found by."""
    title: str
    """What a reader sees."""
    description: str
    higher_leaks: bool
    """More of the data came back where it is higher; otherwise where it is lower."""
    plain: str = ""
    """What it is about in everyday words; empty: the title says it."""
    scale: str = ""
    """How to read a value, from nothing leaked to everything."""
    unit: str = ""
    """One of `RANGES`, or any other word to be written behind a value."""
    limits: tuple[float, float] | None = None
    """Lowest and highest value that there can be; None: those of the unit."""
    decimals: int = 2
    wide: float | None = None
    """What counts as far ahead of a guess: added where higher leaks, a factor where lower leaks."""
    modalities: tuple[str, ...] = MODALITIES
    """Kinds of data that have it."""
    space: Literal["input", "features", "any"] = "input"
    """What it is measured on: inputs, a layer's features, or whatever the attack rebuilt."""
    level: Literal["example", "batch"] = "example"
    counts_examples: bool = False
    """Of a batch: the share of its examples of which something holds, so that it stands for a count."""
    on_request: bool = False
    """Computed only where an audit names it."""
    needs: str = ""
    """What must be installed for it; empty: nothing more."""

    def __post_init__(self) -> None:
        if wrong := next((kind for kind in self.modalities if kind not in MODALITIES), None):
            raise SpecError(
                f"metric '{self.title}' is for '{wrong}' data, which is no kind of data: "
                f"use {', '.join(MODALITIES)}."
            )
        low, high = self.reach
        if not low < high:
            raise SpecError(
                f"metric '{self.title}' has limits from {low:g} to {high:g}: give the lower first."
            )

    @property
    def reach(self) -> tuple[float, float]:
        """Lowest and highest value that there can be: a threshold outside of it would never be reached."""
        return self.limits or RANGES.get(self.unit, RANGES[""])

    @property
    def margin(self) -> float:
        """`wide`, or what stands for it: a fifth of a share, half the squared error."""
        return self.wide or (0.2 if self.higher_leaks else math.sqrt(2))

    @property
    def words(self) -> str:
        """The title inside a sentence: abbreviations keep their capitals."""
        return self.title if self.title.partition("-")[0].isupper() else self.title.lower()

    @property
    def suffix(self) -> str:
        """The unit as it is written behind a value; empty where there is nothing to write."""
        return "" if self.unit in _UNSHOWN else self.unit

    @property
    def explanation(self) -> str:
        """Everyday words first, then what it is and how to read it: for a reader who meets it here."""
        named = f"{self.plain}: {self.description[:1].lower()}{self.description[1:]}" if self.plain else ""
        return " ".join(said for said in (named or self.description, self.scale) if said)

    @property
    def heading(self) -> str:
        """The title over a column of values without their unit."""
        return f"{self.title} ({self.suffix})" if self.suffix else self.title

    def gain(self, value: float, guess: float, *, margins: float = 0.0) -> float:
        """How far `value` leaks more than a guess that was better by `margins` wide margins.

        >>> error = MetricFacts(title="MSE", description="", higher_leaks=False, wide=2.0)
        >>> error.gain(0.1, 0.4), error.gain(0.1, 0.4, margins=1)
        (0.30000000000000004, 0.2)
        """
        if self.higher_leaks:
            return value - guess - margins * self.margin
        return guess - value * float(self.margin**margins)

    def beats(self, value: float, guess: float, *, margins: float = 0.0) -> bool:
        """Whether `value` leaks more than `guess` by at least `margins` wide margins."""
        return self.gain(value, guess) > 0 and self.gain(value, guess, margins=margins) >= 0


@dataclass(frozen=True, kw_only=True)
class Metric(MetricFacts):
    """A metric with the function that computes it: what a package of your own offers.

    compute: from n rebuilt and n true examples (n, ...), in raw units, and the `InputSpec` that describes one
    of them, to n scores (n,). The same function scores the best guess without any update.

    >>> def brightness(recon, truth, spec):
    ...     return (recon - truth).flatten(1).mean(1).abs()
    >>> metric = Metric(title="Brightness error", description="How far the mean brightness is off.",
    ...                 higher_leaks=False, unit="error", modalities=("image",), compute=brightness)
    >>> metric.reach
    (0.0, inf)
    """

    compute: Callable[[Tensor, Tensor, InputSpec], Tensor] = field(compare=False, repr=False)

    def facts(self) -> MetricFacts:
        """Without the function: what a record holds."""
        own: dict[str, Any] = {key: value for key, value in vars(self).items() if key != "compute"}
        return MetricFacts(**own)
