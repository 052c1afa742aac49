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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from research.guard.honest_models import CALIBRATION, HELD_OUT
from research.guard.scores import (
    HISTORY_DETECTORS,
    PREVIOUS_DETECTORS,
    gather,
    on_sample,
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
from seepage.guardian.false_alarms import checks_digest

MODEL_DETECTORS = (*looking_at("weights"), *looking_at("behaviour"), *PREVIOUS_DETECTORS)
_ON_SAMPLE = tuple(map(on_sample, looking_at("behaviour")))
GROUPS: dict[str, tuple[str, ...]] = {
    "weights": looking_at("weights"),
    "all": (*looking_at("weights"), *looking_at("behaviour")),
    "with sample": (*looking_at("weights"), *_ON_SAMPLE),
    "with previous": MODEL_DETECTORS,
    "with both": (*MODEL_DETECTORS, *_ON_SAMPLE),
}
"""What was given beside the weights: nothing, the inputs' shape, a sample, an earlier model, all of it."""
_COUNTED = {None: ("models", "rounds"), "thresholds": (), "figures": ("models",), "rounds": ("rounds",)}
"""What a run counts alarms of."""
_ROC_STRETCH = (0.0, 0.25, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0)
"""Thresholds as so much of their distance from the median honest score."""


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Scores of models that had no part in choosing thresholds."""

    honest: Mapping[str, Sequence[Scored]]
    """By population: public, trained, small."""
    crafted: Sequence[Scored]


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """Scores of trainings."""

    trainings: Sequence[Scored]
    interrupted: Sequence[Scored]
    """Held-out honest trainings, and crafted models (with a family) in the middle of each."""


def _only(limit: Mapping[str, float], names: Sequence[str]) -> dict[str, float]:
    """A detector's threshold is the same on a sample as on noise."""
    everywhere = {**limit, **{on_sample(name): most for name, most in limit.items()}}
    return {name: everywhere[name] for name in names if name in everywhere}


def _highest(scored: Scored) -> Scored:
    """With the higher of a detector's scores on noise and on a sample, which its threshold has to bear."""
    both = {n: scored.scores[on_sample(n)] for n in looking_at("behaviour") if on_sample(n) in scored.scores}
    worst = {name: max(value, scored.scores.get(name, value)) for name, value in both.items()}
    return replace(scored, scores={**scored.scores, **worst})


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
        certain = round(alarm_share(chosen, _only(limit, GROUPS["weights"]), of_trap=True), 4)
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


def roc(measured: HeldOut, limit: Mapping[str, float]) -> dict[str, list[list[float]]]:
    """For each attack (false alarms, detection) as all thresholds are moved together."""
    held_out = _pooled(measured.honest)
    middle = {
        n: float(np.median([s.scores[n] for s in held_out if n in s.scores]))
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


def chosen_limits(honest: Sequence[Scored], names: Sequence[str]) -> tuple[dict[str, Any], dict[str, float]]:
    """(how the thresholds were chosen, the thresholds)."""
    margins = safe_margins(smallest_margins(honest, names))
    # Scores differ in their last digits from run to run (LAPACK), the file must not.
    limit = {n: round(most, 6) for n, most in limits(honest, margins).items()}
    return {"margins": margins, "left out accused": round(left_out_share(honest, margins), 4)}, limit


def counted(held_out: Sequence[Scored], limit: Mapping[str, float]) -> dict[str, Any]:
    """How often the models of one population are accused, and of a trap."""
    found = {g: false_alarms(held_out, _only(limit, names)) for g, names in GROUPS.items()}
    trap = false_alarms(held_out, _only(limit, GROUPS["with both"]), of_trap=True)
    return {"false_alarms": found, "false_alarms_as_trap": trap}


def of_thresholds(calibrated: Mapping[str, Sequence[Scored]]) -> dict[str, Any]:
    """What calibration.json says about the thresholds of single models."""
    chosen, limit = chosen_limits([_highest(scored) for scored in _pooled(calibrated)], MODEL_DETECTORS)
    models = {what: len(part) for what, part in calibrated.items()}
    return {"calibration_models": models, "chosen": {"models": chosen}, "thresholds": limit}


def of_figures(measured: HeldOut, limit: Mapping[str, float]) -> dict[str, Any]:
    """What it says about how often they err, and what they find."""
    counts = {what: counted(part, limit) for what, part in measured.honest.items()}
    return {
        "crafted_models": len(measured.crafted),
        **{
            key: {what: part[key] for what, part in counts.items()}
            for key in ("false_alarms", "false_alarms_as_trap")
        },
        "detection": detection(measured.crafted, limit),
        "roc": roc(measured, limit),
    }


def of_rounds(measured: Rounds) -> dict[str, Any]:
    """What it says about comparisons with earlier rounds."""
    chosen, limit = chosen_limits(measured.trainings, HISTORY_DETECTORS)
    undisturbed = [s for s in measured.interrupted if not s.family]
    return {
        "calibration_trainings": len(measured.trainings),
        "chosen": {"trainings": chosen},
        "thresholds": limit,
        "false_alarms": {"rounds": false_alarms(undisturbed, _only(limit, HISTORY_DETECTORS))},
        "detection in the middle of a training": in_the_middle(measured.interrupted, limit),
    }


def joined(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The second over the first, parts of the same name joined.

    >>> joined({"a": 1, "b": {"c": 2}}, {"a": 3, "b": {"d": 4}})
    {'a': 3, 'b': {'c': 2, 'd': 4}}
    """
    found = {**one, **other}
    for name in one.keys() & other.keys():
        if isinstance(one[name], dict):
            found[name] = {**one[name], **other[name]}
    return found


def measure_calibrated(pool: ProcessPoolExecutor) -> dict[str, Sequence[Scored]]:
    """Honest models that thresholds are chosen by."""
    return {
        "public": score_public(held_out=False),
        "trained": gather(score_trained, [f for f in FAMILIES if f not in HELD_OUT_FAMILIES], 0, pool),
        "small": gather(score_honest, CALIBRATION, 0, pool),
    }


def measure_held_out(pool: ProcessPoolExecutor) -> HeldOut:
    """Models of other families, settings and seeds."""
    return HeldOut(
        honest={
            "public": score_public(held_out=True),
            "trained": gather(score_trained, sorted(HELD_OUT_FAMILIES), 7000, pool),
            "small": gather(score_honest, HELD_OUT, 2700, pool),
        },
        crafted=gather(score_crafted, HELD_OUT, range(810, 813), pool),
    )


def measure_rounds(pool: ProcessPoolExecutor) -> Rounds:
    """Of trainings."""
    return Rounds(trainings=score_rounds(pool), interrupted=score_held_out_rounds(pool))


def score_rounds(pool: ProcessPoolExecutor) -> list[Scored]:
    """Three draws of every honest training: the highest score of one draw is a matter of luck, for some
    trainings are chaotic. Over draws of 75 it was .54, .66 and .95."""
    return [s for seed in (3000, 3100, 3200) for s in gather(score_trainings, CALIBRATION, seed, pool)]


def score_held_out_rounds(pool: ProcessPoolExecutor) -> list[Scored]:
    """Other settings and seeds; crafted models in the middle of the first draw."""
    more = [s for seed in (4100, 4200) for s in gather(score_trainings, HELD_OUT, seed, pool)]
    return [*gather(score_interrupted, HELD_OUT, 4000, pool), *more]


def measured(part: str | None, shipped: dict[str, Any], workers: int) -> dict[str, Any]:
    """The content of calibration.json, all of it or with one part measured anew.

    thresholds: those of single models. figures: how often the shipped thresholds err, and what they find.
    rounds: comparisons with earlier rounds.
    """
    found = shipped if part else {}
    with pool_of(workers) as pool:
        if part in (None, "thresholds"):
            found = joined(found, of_thresholds(measure_calibrated(pool)))
        if part in (None, "rounds"):
            found = joined(found, of_rounds(measure_rounds(pool)))
        if part in (None, "figures"):
            found = joined(found, of_figures(measure_held_out(pool), found["thresholds"]))
    # Reports say so where the checks or thresholds are no longer those that were counted.
    now = dict.fromkeys(_COUNTED[part], checks_digest(found["thresholds"]))
    return {"made_by": "python -m research.guard.calibrate", **joined(found, {"counted_with": now})}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure everything and write the file."""
    parser = argparse.ArgumentParser(prog="python -m research.guard.calibrate", description=__doc__)
    default = Path(detectors.__file__).with_name("calibration.json")
    parser.add_argument("--out", type=Path, default=default, help="where to write the calibration")
    parser.add_argument("--workers", type=int, default=1, help="processes that measure at a time")
    parser.add_argument(
        "--only", choices=("thresholds", "rounds", "figures"), help="measure one part anew, keep the rest"
    )
    given = parser.parse_args(arguments)
    found = measured(given.only, json.loads(default.read_text(encoding="utf-8")), given.workers)
    text = json.dumps(found, indent=1)
    given.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
