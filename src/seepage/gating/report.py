"""What the gate says about one update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Answer = Literal["pass", "block", "not measured"]
How = Literal["exact", "picture", "text", "features", "isolated", "owned", "unmixed", "searched"]

CAVEAT = (
    "This holds for the attacks that were run, on this update alone. Others may recover more, over several "
    "rounds in particular, and what was not measured is not private."
)
WORDS: dict[How, str] = {
    "exact": "recovered exactly",
    "picture": "recovered as a picture",
    "text": "recovered as a text, nine words of ten or more in their places",
    "features": "recovered as features of a layer, exactly",
    "isolated": "alone in the update, so that a search for it has nothing else to fit",
    "owned": "alone at neurons, so that reading rows gives it away",
    "unmixed": "one of few for so many neurons, so that a search tells it from the others, given time",
    "searched": "behind an update that a search has taken apart in part, and goes on with",
}


@dataclass(frozen=True, kw_only=True)
class Exposure:
    """One of the client's own examples that this update gives away."""

    example: int
    """Its place in the batch."""
    how: How
    by: str
    """The attack, or the measure."""
    layer: str | None
    psnr: float | None = None
    """dB, of a picture."""
    strength: float | None = None
    """Neurons owned, or D-SNR."""

    def text(self) -> str:
        where = "" if self.layer is None else f" through layer '{self.layer}'"
        size = "" if self.psnr is None else f" ({self.psnr:.0f} dB)"
        return f"example {self.example}: {WORDS[self.how]}{size}{where}, by {self.by}"


@dataclass(frozen=True, kw_only=True)
class Advice:
    """A change, with what the same attacks recovered after it was made to this very update."""

    change: str
    exposed: int
    measured_on: str = "this update"

    def text(self) -> str:
        left = "no example is" if self.exposed == 0 else f"{self.exposed} example(s) are still"
        return f"{self.change}: then {left} recovered (measured on {self.measured_on})"


MOST_LINES = 8
"""Examples that are told one by one. A choice: a screen has room for them, and all are in `exposures`."""


@dataclass(frozen=True, kw_only=True)
class GateReport:
    """Which of the client's examples this update gives away, and what to change."""

    examples: int
    exposures: Sequence[Exposure]
    threshold: float
    """Share of the batch that may be exposed."""
    measured: bool
    advice: Sequence[Advice] = ()
    label_counts: Sequence[int] | None = None
    """Of the classes, as the server infers them."""
    labels_right: bool | None = None
    words: float | None = None
    """Share of the tokens in the batch that are known to be there, in whatever place."""
    not_run: dict[str, str] = field(default_factory=dict)
    quick: bool = False
    seconds: float = 0.0
    """CPU time; of the quick mode clock time, for asking for CPU time can take as long as a small step."""
    caveat: str = CAVEAT

    @property
    def exposed(self) -> list[int]:
        """Places of the examples that are given away."""
        return sorted({one.example for one in self.exposures})

    @property
    def share(self) -> float:
        return len(self.exposed) / max(1, self.examples)

    @property
    def answer(self) -> Answer:
        """What was not measured never passes."""
        if self.exposures and self.share > self.threshold:
            return "block"
        return "pass" if self.measured else "not measured"

    def text(self) -> str:
        """For people; holds no data, only places in the batch."""
        head = f"{self.answer}: {len(self.exposed)} of {self.examples} examples would be recovered"
        head += f" (allowed: {self.threshold:.0%})."
        lines = [
            head
            if self.measured
            else f"not measured: attacks could not be run, broke off, or read other examples.\n{head}"
        ]
        shown = _strongest(self.exposures)
        lines += [f"- {one.text()}." for one in shown[:MOST_LINES]]
        if len(shown) > MOST_LINES:
            lines.append(f"- and {len(shown) - MOST_LINES} more (--json has all of them).")
        if self.labels_right:
            lines.append("The labels of the batch can be counted from it, class by class.")
        if self.words:
            lines.append(f"Of the different tokens in the batch {self.words:.0%} are known to be there.")
        lines += [f"To change: {one.text()}." for one in self.advice]
        lines += [f"Not run: {name}: {why}" for name, why in self.not_run.items()]
        return "\n".join([*lines, self.caveat])

    def to_dict(self) -> dict[str, Any]:
        """For machines."""
        return {
            "answer": self.answer,
            "examples": self.examples,
            "exposed": self.exposed,
            "share": self.share,
            "threshold": self.threshold,
            "exposures": [vars(one) for one in self.exposures],
            "advice": [vars(one) for one in self.advice],
            "labels_right": self.labels_right,
            "words": self.words,
            "not_run": self.not_run,
            "quick": self.quick,
            "seconds": round(self.seconds, 3),
        }

    def log_line(self) -> str:
        """For a log that others read: counts alone."""
        return f"gate: {self.answer}, {len(self.exposed)} of {self.examples} examples exposed"


def _strongest(exposures: Sequence[Exposure]) -> list[Exposure]:
    """One for each example: the first kind in the order of `WORDS`."""
    order = list(WORDS)
    found: dict[int, Exposure] = {}
    for one in sorted(exposures, key=lambda each: order.index(each.how)):
        found.setdefault(one.example, one)
    return [found[example] for example in sorted(found)]
