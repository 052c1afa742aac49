"""Regenerates the guard's calibration: `python -m research.guard.calibrate`, a few minutes on one core.

Thresholds come from the honest models and trainings of one set of settings, by leaving each out in turn
(`thresholds.py`). False alarms and detection are counted on other settings, other seeds, none of which had a
part in choosing a threshold.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from research.guard.honest_models import CALIBRATION, HELD_OUT
from research.guard.scores import (
    HISTORY_DETECTORS,
    gather,
    pool_of,
    score_crafted,
    score_honest,
    score_interrupted,
    score_trainings,
)
from research.guard.thresholds import (
    Scored,
    accused,
    alarm_share,
    interval,
    left_out_share,
    limits,
    safe_margins,
    smallest_margins,
    trap_limits,
)
from seepage.guardian import detectors
from seepage.guardian.detectors import looking_at

MODEL_DETECTORS = (*looking_at("weights"), *looking_at("behaviour"), "round_jump")
GROUPS: dict[str, tuple[str, ...]] = {
    "weights": looking_at("weights"),
    "all": (*looking_at("weights"), *looking_at("behaviour")),
    "with previous": MODEL_DETECTORS,
}
_ROC_STRETCH = (0.0, 0.25, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0)
"""Thresholds as so much of their distance from the median honest score."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Everything that was scored."""

    calibrated: Sequence[Scored]
    held_out: Sequence[Scored]
    crafted: Sequence[Scored]
    trainings: Sequence[Scored]
    interrupted: Sequence[Scored]
    """Held-out honest trainings, and crafted models (with a family) in the middle of each."""


def _only(limit: Mapping[str, float], names: Sequence[str]) -> dict[str, float]:
    return {name: limit[name] for name in names if name in limit}


def false_alarms(honest: Sequence[Scored], limit: Mapping[str, float]) -> dict[str, Any]:
    """Count, share and 95 % interval, and which models they were."""
    found = [(s, accused(s, limit)) for s in honest]
    count = sum(bool(names) for _, names in found)
    return {
        "alarms": count,
        "models": len(honest),
        "share": round(count / len(honest), 4),
        "interval": interval(count, len(honest)),
        "where": [f"{s.name}: {', '.join(names)}" for s, names in found if names],
    }


def detection(
    crafted: Sequence[Scored], limit: Mapping[str, float], trap: Mapping[str, float]
) -> list[dict[str, Any]]:
    """One line for each attack at each strength."""
    table = []
    for family, strength in sorted({(c.family, c.strength) for c in crafted}):
        chosen = [c for c in crafted if (c.family, c.strength) == (family, strength)]
        rates = {g: round(alarm_share(chosen, _only(limit, names)), 4) for g, names in GROUPS.items()}
        certain = round(alarm_share(chosen, _only(trap, GROUPS["all"])), 4)
        table.append(
            {"attack": family, "strength": strength, "models": len(chosen), **rates, "as trap": certain}
        )
    return table


def in_the_middle(interrupted: Sequence[Scored], limit: Mapping[str, float]) -> list[dict[str, Any]]:
    """What the comparison with earlier rounds alone detects of crafted models in the middle of a training."""
    table = []
    for family in sorted({c.family for c in interrupted if c.family}):
        chosen = [c for c in interrupted if c.family == family]
        rates = {n: round(alarm_share(chosen, _only(limit, [n])), 4) for n in HISTORY_DETECTORS}
        either = round(alarm_share(chosen, _only(limit, HISTORY_DETECTORS)), 4)
        table.append({"attack": family, "models": len(chosen), **rates, "either": either})
    return table


def roc(measured: Measured, limit: Mapping[str, float]) -> dict[str, list[list[float]]]:
    """For each attack (false alarms, detection) as all thresholds are moved together."""
    middle = {
        n: float(np.median([s.scores[n] for s in measured.calibrated if n in s.scores]))
        for n in GROUPS["all"]
        if n in limit
    }
    points = [{n: m + stretch * (limit[n] - m) for n, m in middle.items()} for stretch in _ROC_STRETCH]
    curves = {}
    for family in sorted({c.family for c in measured.crafted}):
        chosen = [c for c in measured.crafted if c.family == family]
        curves[family] = [
            [round(alarm_share(who, point), 4) for who in (measured.held_out, chosen)] for point in points
        ]
    return curves


def summarise(measured: Measured) -> dict[str, Any]:
    """The content of calibration.json."""
    limit: dict[str, float] = {}
    trap: dict[str, float] = {}
    chosen = {}
    for what, honest, names in (
        ("models", measured.calibrated, MODEL_DETECTORS),
        ("trainings", measured.trainings, HISTORY_DETECTORS),
    ):
        margins = safe_margins(smallest_margins(honest, names))
        # Scores differ in their last digits from run to run (LAPACK), the file must not.
        suspicious = {n: round(most, 6) for n, most in limits(honest, margins).items()}
        limit |= suspicious
        trap |= trap_limits(honest, suspicious)
        chosen[what] = {"margins": margins, "left out accused": round(left_out_share(honest, margins), 4)}
    alarms = {g: false_alarms(measured.held_out, _only(limit, names)) for g, names in GROUPS.items()}
    undisturbed = [s for s in measured.interrupted if not s.family]
    alarms["rounds"] = false_alarms(undisturbed, _only(limit, HISTORY_DETECTORS))
    return {
        "made_by": "python -m research.guard.calibrate",
        "calibration_models": len(measured.calibrated),
        "calibration_trainings": len(measured.trainings),
        "held_out_models": len(measured.held_out),
        "held_out_trainings": len(undisturbed),
        "crafted_models": len(measured.crafted),
        "chosen": chosen,
        "thresholds": {n: {"suspicious": limit[n], "trap": round(trap[n], 6)} for n in limit},
        "false_alarms": alarms,
        "false_alarms_as_trap": false_alarms(measured.held_out, _only(trap, GROUPS["all"])),
        "false_alarms_by_detector": {
            n: round(alarm_share(measured.held_out, _only(limit, [n])), 4)
            for n in MODEL_DETECTORS
            if n in limit
        },
        "detection": detection(measured.crafted, limit, trap),
        "detection in the middle of a training": in_the_middle(measured.interrupted, limit),
        "roc": roc(measured, limit),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure everything and write the file."""
    parser = argparse.ArgumentParser(prog="python -m research.guard.calibrate", description=__doc__)
    default = Path(detectors.__file__).with_name("calibration.json")
    parser.add_argument("--out", type=Path, default=default, help="where to write the calibration")
    parser.add_argument("--workers", type=int, default=1, help="processes that measure at a time")
    given = parser.parse_args(arguments)
    with pool_of(given.workers) as pool:
        measured = Measured(
            calibrated=gather(score_honest, CALIBRATION, 0, pool),
            held_out=gather(score_honest, HELD_OUT, 2000, pool),
            crafted=gather(score_crafted, HELD_OUT, range(700, 703), pool),
            trainings=gather(score_trainings, CALIBRATION, 3000, pool),
            interrupted=gather(score_interrupted, HELD_OUT, 4000, pool),
        )
    text = json.dumps(summarise(measured), indent=1)
    given.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
