"""Regenerates the guard's calibration: `python -m research.guard.calibrate`, some ten minutes on one core.

Thresholds come from honest models and trainings, by leaving each family out in turn (`thresholds.py`): small
networks of several settings, networks that were trained to convergence, and public models where they are at
hand (`public_models.py`). False alarms and detection are counted on other families, settings and seeds, none
of which had a part in choosing a threshold.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from research.guard.honest_models import CALIBRATION, HELD_OUT
from research.guard.scores import (
    HISTORY_DETECTORS,
    PREVIOUS_DETECTORS,
    gather,
    pool_of,
    score_crafted,
    score_honest,
    score_interrupted,
    score_public,
    score_trained,
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
)
from research.guard.trained_models import FAMILIES
from research.guard.trained_models import HELD_OUT as HELD_OUT_FAMILIES
from seepage.guardian import detectors
from seepage.guardian.detectors import looking_at

MODEL_DETECTORS = (*looking_at("weights"), *looking_at("behaviour"), *PREVIOUS_DETECTORS)
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

    calibrated: Mapping[str, Sequence[Scored]]
    """By population: public, trained, small."""
    held_out: Mapping[str, Sequence[Scored]]
    crafted: Sequence[Scored]
    trainings: Sequence[Scored]
    interrupted: Sequence[Scored]
    """Held-out honest trainings, and crafted models (with a family) in the middle of each."""


def _only(limit: Mapping[str, float], names: Sequence[str]) -> dict[str, float]:
    return {name: limit[name] for name in names if name in limit}


def false_alarms(
    honest: Sequence[Scored], limit: Mapping[str, float], *, of_trap: bool = False
) -> dict[str, Any]:
    """Count, share and 95 % interval, and which models they were."""
    found = [(s, accused(s, limit, of_trap=of_trap)) for s in honest]
    count = sum(bool(names) for _, names in found)
    if not honest:
        return {"alarms": 0, "models": 0, "families": 0, "share": None, "interval": [0.0, 1.0], "where": []}
    return {
        "alarms": count,
        "models": len(honest),
        "families": len({s.group for s in honest}),
        "share": round(count / len(honest), 4),
        "interval": interval(count, len(honest)),
        "where": [f"{s.name}: {', '.join(names)}" for s, names in found if names],
    }


def detection(crafted: Sequence[Scored], limit: Mapping[str, float]) -> list[dict[str, Any]]:
    """One line for each attack at each strength."""
    table = []
    for family, strength in sorted({(c.family, c.strength) for c in crafted}):
        chosen = [c for c in crafted if (c.family, c.strength) == (family, strength)]
        rates = {g: round(alarm_share(chosen, _only(limit, names)), 4) for g, names in GROUPS.items()}
        certain = round(alarm_share(chosen, _only(limit, GROUPS["all"]), of_trap=True), 4)
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
    calibrated, held_out = _pooled(measured.calibrated), _pooled(measured.held_out)
    middle = {
        n: float(np.median([s.scores[n] for s in calibrated if n in s.scores]))
        for n in GROUPS["all"]
        if n in limit
    }
    points = [{n: m + stretch * (limit[n] - m) for n, m in middle.items()} for stretch in _ROC_STRETCH]
    curves = {}
    for family in sorted({c.family for c in measured.crafted}):
        chosen = [c for c in measured.crafted if c.family == family]
        curves[family] = [
            [round(alarm_share(who, point), 4) for who in (held_out, chosen)] for point in points
        ]
    return curves


def _pooled(populations: Mapping[str, Sequence[Scored]]) -> list[Scored]:
    return [scored for part in populations.values() for scored in part]


def summarise(measured: Measured) -> dict[str, Any]:
    """The content of calibration.json."""
    limit: dict[str, float] = {}
    chosen = {}
    calibrated = _pooled(measured.calibrated)
    for what, honest, names in (
        ("models", calibrated, MODEL_DETECTORS),
        ("trainings", measured.trainings, HISTORY_DETECTORS),
    ):
        margins = safe_margins(smallest_margins(honest, names))
        # Scores differ in their last digits from run to run (LAPACK), the file must not.
        limit |= {n: round(most, 6) for n, most in limits(honest, margins).items()}
        chosen[what] = {"margins": margins, "left out accused": round(left_out_share(honest, margins), 4)}
    undisturbed = [s for s in measured.interrupted if not s.family]
    return {
        "made_by": "python -m research.guard.calibrate",
        "calibration_models": {what: len(part) for what, part in measured.calibrated.items()},
        "calibration_trainings": len(measured.trainings),
        "crafted_models": len(measured.crafted),
        "chosen": chosen,
        "thresholds": limit,
        "false_alarms": {
            **{
                what: {g: false_alarms(part, _only(limit, names)) for g, names in GROUPS.items()}
                for what, part in measured.held_out.items()
            },
            "rounds": false_alarms(undisturbed, _only(limit, HISTORY_DETECTORS)),
        },
        "false_alarms_as_trap": {
            what: false_alarms(part, _only(limit, GROUPS["with previous"]), of_trap=True)
            for what, part in measured.held_out.items()
        },
        "detection": detection(measured.crafted, limit),
        "detection in the middle of a training": in_the_middle(measured.interrupted, limit),
        "roc": roc(measured, limit),
    }


def measure_all(workers: int) -> Measured:
    """Everything that is scored, on both sides of the split."""
    sides = [[f for f in FAMILIES if f not in HELD_OUT_FAMILIES], sorted(HELD_OUT_FAMILIES)]
    with pool_of(workers) as pool:
        return Measured(
            calibrated={
                "public": score_public(held_out=False),
                "trained": gather(score_trained, sides[0], 0, pool),
                "small": gather(score_honest, CALIBRATION, 0, pool),
            },
            held_out={
                "public": score_public(held_out=True),
                "trained": gather(score_trained, sides[1], 6000, pool),
                "small": gather(score_honest, HELD_OUT, 2600, pool),
            },
            crafted=gather(score_crafted, HELD_OUT, range(710, 713), pool),
            trainings=score_rounds(pool),
            interrupted=score_held_out_rounds(pool),
        )


def score_rounds(pool: ProcessPoolExecutor) -> list[Scored]:
    """Three draws of every honest training: the highest score of one draw is a matter of luck, for some
    trainings are chaotic. Over draws of 75 it was .54, .66 and .95."""
    return [s for seed in (3000, 3100, 3200) for s in gather(score_trainings, CALIBRATION, seed, pool)]


def score_held_out_rounds(pool: ProcessPoolExecutor) -> list[Scored]:
    """Other settings and seeds; crafted models in the middle of the first draw."""
    more = [s for seed in (4100, 4200) for s in gather(score_trainings, HELD_OUT, seed, pool)]
    return [*gather(score_interrupted, HELD_OUT, 4000, pool), *more]


def again(shipped: dict[str, Any], part: str, workers: int) -> dict[str, Any]:
    """The shipped calibration with one part measured anew.

    rounds: thresholds of the comparisons with earlier rounds, and their figures. public: how often the
    shipped thresholds accuse the public models at hand, of families that had no part in choosing them.
    """
    limit = shipped["thresholds"]
    if part == "public":
        held_out = score_public(held_out=True)
        found = {g: false_alarms(held_out, _only(limit, names)) for g, names in GROUPS.items()}
        shipped["false_alarms"]["public"] = found
        trap = false_alarms(held_out, _only(limit, GROUPS["with previous"]), of_trap=True)
        shipped["false_alarms_as_trap"]["public"] = trap
        return shipped
    with pool_of(workers) as pool:
        trainings, interrupted = score_rounds(pool), score_held_out_rounds(pool)
    margins = safe_margins(smallest_margins(trainings, HISTORY_DETECTORS))
    limit |= {n: round(most, 6) for n, most in limits(trainings, margins).items()}
    left_out = round(left_out_share(trainings, margins), 4)
    shipped["chosen"]["trainings"] = {"margins": margins, "left out accused": left_out}
    shipped["calibration_trainings"] = len(trainings)
    undisturbed = [s for s in interrupted if not s.family]
    shipped["false_alarms"]["rounds"] = false_alarms(undisturbed, _only(limit, HISTORY_DETECTORS))
    shipped["detection in the middle of a training"] = in_the_middle(interrupted, limit)
    return shipped


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure everything and write the file."""
    parser = argparse.ArgumentParser(prog="python -m research.guard.calibrate", description=__doc__)
    default = Path(detectors.__file__).with_name("calibration.json")
    parser.add_argument("--out", type=Path, default=default, help="where to write the calibration")
    parser.add_argument("--workers", type=int, default=1, help="processes that measure at a time")
    parser.add_argument("--only", choices=("rounds", "public"), help="measure one part anew, keep the rest")
    given = parser.parse_args(arguments)
    if given.only is None:
        found = summarise(measure_all(given.workers))
    else:
        found = again(json.loads(default.read_text(encoding="utf-8")), given.only, given.workers)
    text = json.dumps(found, indent=1)
    given.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
