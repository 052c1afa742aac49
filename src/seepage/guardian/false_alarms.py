"""How often the guard errs on honest models: counts by population, each with its interval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from seepage.core.types import Finding
from seepage.guardian.detectors import calibration, looking_at

_POPULATIONS = {
    "public": "public models (weights alone)",
    "trained": "models trained to convergence",
    "small": "small networks trained for a few epochs",
    "rounds": "trainings of ten rounds",
}


@dataclass(frozen=True)
class Count:
    """Honest models of one population, none of which had a part in the calibration."""

    population: str
    alarms: int
    models: int
    families: int
    interval: tuple[float, float]
    """Of the share, 95 %."""

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"{self.alarms} of {self.models} honest {_POPULATIONS[self.population]} of {self.families} "
            f"families (95 % interval {low:.1%} to {high:.1%})"
        )


@dataclass(frozen=True)
class FalseAlarms:
    """One count for each population: what holds for one says little about another."""

    counts: tuple[Count, ...]

    @classmethod
    def of(cls, findings: Mapping[str, Finding]) -> FalseAlarms:
        """For the checks that were run.

        >>> "public models" in FalseAlarms.of({}).text()
        True
        """
        group = "weights"
        if any(name in findings for name in looking_at("behaviour")):
            group = "all"
        if "rare_neurons" in findings:
            group = "with sample"
        if "round_jump" in findings:
            group = "with both" if group == "with sample" else "with previous"
        measured: dict[str, Any] = calibration()["false_alarms"]
        # Where a group was not counted by itself, the one without the sample is the nearest that was.
        nearest = {"with sample": "all", "with both": "with previous"}.get(group, group)
        chosen = {n: measured[n].get(group, measured[n][nearest]) for n in _POPULATIONS if n != "rounds"}
        if "step_history" in findings or "loss_jump" in findings:
            chosen["rounds"] = measured["rounds"]
        return cls(
            tuple(
                Count(name, one["alarms"], one["models"], one["families"], tuple(one["interval"]))
                for name, one in chosen.items()
                if one["models"]
            )
        )

    def text(self) -> str:
        """All of them, inside a sentence."""
        return ", ".join(map(str, self.counts))

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """For machines."""
        return {
            c.population: {"alarms": c.alarms, "models": c.models, "interval": list(c.interval)}
            for c in self.counts
        }
