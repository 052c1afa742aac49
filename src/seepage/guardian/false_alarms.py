"""How often the guard errs on honest models: counts by population, each with its interval."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
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
    note: str = ""
    """How the checks that were run differ from those that were counted."""

    def __str__(self) -> str:
        low, high = self.interval
        note = f"; {self.note}" if self.note else ""
        return (
            f"{self.alarms} of {self.models} honest {_POPULATIONS[self.population]} of {self.families} "
            f"families (95 % interval {low:.1%} to {high:.1%}{note})"
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
        without = {n: "counted without a sample" for n in chosen if group not in measured[n]}
        if "step_history" in findings or "loss_jump" in findings:
            chosen["rounds"] = measured["rounds"]
        notes = {name: ", ".join(filter(None, (_age(name), without.get(name)))) for name in chosen}
        return cls(
            tuple(
                Count(n, one["alarms"], one["models"], one["families"], tuple(one["interval"]), notes[n])
                for n, one in chosen.items()
                if one["models"]
            )
        )

    def text(self) -> str:
        """All of them, inside a sentence."""
        return ", ".join(map(str, self.counts))

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """For machines."""
        return {
            c.population: {
                "alarms": c.alarms,
                "models": c.models,
                "interval": list(c.interval),
                **({"note": c.note} if c.note else {}),
            }
            for c in self.counts
        }


def _age(population: str) -> str:
    """What is to be said where the checks are no longer those that were counted."""
    counted = calibration().get("counted_with", {})
    key = "rounds" if population == "rounds" else "models"
    return (
        ""
        if counted.get(key) == checks_digest(calibration()["thresholds"])
        else "counted before the checks were last changed"
    )


def checks_digest(thresholds: Mapping[str, float]) -> str:
    """Of thresholds and of the detectors' code, comments and layout aside: what a count holds for.

    >>> checks_digest({"trap_rows": 1.0}) == checks_digest({"trap_rows": 2.0})
    False
    """
    return hashlib.sha256((_code() + json.dumps(thresholds, sort_keys=True)).encode()).hexdigest()[:16]


@cache
def _code() -> str:
    files = resources.files("seepage.guardian.detectors").iterdir()
    code = {f.name: f.read_text(encoding="utf-8") for f in files if f.name.endswith(".py")}
    return "\n".join(_without_docstrings(ast.parse(code[name])) for name in sorted(code))


def _without_docstrings(tree: ast.Module) -> str:
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            body[:] = [line for line in body if not _is_words(line)]
    return ast.unparse(tree)


def _is_words(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)
