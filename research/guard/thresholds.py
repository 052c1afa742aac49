"""From honest models' scores to thresholds that hold for architectures nobody has seen yet.

Models of one architecture resemble each other, so a quantile over all models says little about the next
architecture: it is exceeded there far more often than its level promises. Instead every architecture is left
out in turn, thresholds are made from the others, and each detector gets the margin above its highest honest
score at which the models left out would have been accused as rarely as wanted, divided by the number of
detectors (Bonferroni), since any of them may raise the alarm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from seepage.record.intervals import clopper_pearson

FALSE_ALARMS = 0.01
AIM = FALSE_ALARMS / 2
"""Of the models left out: half of what is wanted, since margins are chosen on the same models."""
_BULK = 0.9
_MARGINS = tuple(step / 20 for step in range(81))
_SAFETY = 0.25
"""Added to each margin: the most extreme of these architectures is not the most extreme there is."""

LEAST: dict[str, float] = {
    "pass_through": 9.0,  # 3x3 filters that were pruned at random, not by size, reach 7
    "trap_rows": 0.3,  # halves twice as alike as independent ones
    "row_balance": 0.2,  # below two thirds of the variance of independent weights, beyond chance
    "identical_rows": 0.5,  # mean cosine
    "lone_class_row": 0.7,  # four fifths of the energy in one row
    "class_bias": 0.78,  # five from all others: one class 150 times as likely as another
    "fresh_start": 0.8,  # a median cosine of 0.2 with the last round
    "lone_neurons": 0.25,
    "rare_neurons": 0.4,  # random rows behind pictures of one brightness have a third
    "sign_distribution": 0.25,
    "gradient_share": 0.5,  # one label three times the others together
    "transmission": 0.3,  # signal twice the noise
    "step_history": 0.3,  # twice as far as ever before
    "loss_jump": 0.2,  # a loss by 60 % above what was expected
}
"""Below these a sign is of no use to an attacker, however rare honest models with more of it are here: data
with rarer classes or other shapes than the calibration's would be accused for nothing."""


@dataclass(frozen=True, kw_only=True)
class Scored:
    """One model's scores: of honest ones with their architecture, of crafted ones with the attack."""

    scores: Mapping[str, float]
    exact: frozenset[str] = frozenset()
    """Detectors that found the structure itself, so that an alarm of theirs says "trap"."""
    group: str = ""
    name: str = ""
    family: str = ""
    strength: str = ""


def limits(
    honest: Sequence[Scored], margins: Mapping[str, float], *, least: Mapping[str, float] = LEAST
) -> dict[str, float]:
    """Each detector's highest honest score and, above it, so many times its distance from the bulk."""
    found = {}
    for name, margin in margins.items():
        column = [s.scores[name] for s in honest if name in s.scores]
        if column:
            top, bulk = max(column), float(np.quantile(column, _BULK))
            found[name] = max(top + margin * (top - bulk), least.get(name, -np.inf))
    return found


def accused(model: Scored, limit: Mapping[str, float], *, of_trap: bool = False) -> list[str]:
    """The detectors whose threshold it exceeds, or those of them that say "trap"."""
    alarms = [name for name, most in limit.items() if model.scores.get(name, -np.inf) > most]
    return [name for name in alarms if name in model.exact] if of_trap else alarms


def alarm_share(models: Sequence[Scored], limit: Mapping[str, float], *, of_trap: bool = False) -> float:
    """Share of models for which at least one of the detectors exceeds its threshold."""
    return (
        float(np.mean([bool(accused(s, limit, of_trap=of_trap)) for s in models])) if models else float("nan")
    )


def left_out_share(honest: Sequence[Scored], margins: Mapping[str, float]) -> float:
    """Share of models that thresholds made from the other architectures would accuse."""
    alarms = 0
    for group in {s.group for s in honest}:
        limit = limits([s for s in honest if s.group != group], margins, least={})
        alarms += sum(bool(accused(s, limit)) for s in honest if s.group == group)
    return alarms / len(honest)


def smallest_margins(honest: Sequence[Scored], names: Sequence[str]) -> dict[str, float]:
    """For each detector the smallest margin at which left-out architectures are accused rarely enough."""
    aim = AIM / len(names)
    return {
        name: next((m for m in _MARGINS if left_out_share(honest, {name: m}) <= aim), _MARGINS[-1])
        for name in names
    }


def safe_margins(margins: Mapping[str, float]) -> dict[str, float]:
    """With something on top."""
    return {name: margin + _SAFETY for name, margin in margins.items()}


def interval(count: int, of: int) -> list[float]:
    """Clopper and Pearson's 95 % interval of a share.

    >>> interval(0, 300)
    [0.0, 0.0122]
    """
    return [round(end, 4) for end in clopper_pearson(count, of)]
