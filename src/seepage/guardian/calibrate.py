"""Regenerates the guard's calibration: `python -m seepage.guardian.calibrate`, a few minutes on one core.

Thresholds come from the honest models of one half of the settings. False alarms and detection
are counted on the other half, none of which had a part in choosing a threshold.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from seepage import detectors
from seepage.detectors import BEHAVIOUR_DETECTORS, DETECTORS, WEIGHT_DETECTORS
from seepage.detectors.calibrated import scores_only
from seepage.errors import NotApplicable
from seepage.guardian.crafted_models import crafted_models
from seepage.guardian.honest_models import CALIBRATION, HELD_OUT, Setting, examples, honest_models
from seepage.types import Broadcast, InputSpec

FALSE_ALARMS = 0.01
_MARGIN = 0.25
"""A trap must exceed every honest score by so much of the distance from their median."""
_ROC_LEVELS = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
_CRAFTED_SEEDS = range(500, 504)

_LEAST: dict[str, float] = {
    "pass_through": 3.0,
    "trap_rows": 0.3,  # halves twice as alike as independent ones
    "row_balance": 0.3,  # half of the variance of independent weights
    "identical_rows": 0.5,  # mean cosine
    "quantile_biases": 0.0,  # as much explained as left open
    "lone_class_row": 0.7,  # four fifths of the energy in one row
    "class_bias": 0.78,  # five apart: one class 150 times as likely as another
    "lone_neurons": 0.25,
    "sign_distribution": 0.25,
    "gradient_share": 0.5,  # one input three times the others together
    "transmission": 0.3,  # signal twice the noise
}
"""Below these a sign is of no use to an attacker, however rare honest models with more of it are here: data
with rarer classes or other shapes than the calibration's would be accused for nothing."""

Scores = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Scored:
    """One model's scores: of crafted models with the attack's family and strength."""

    scores: Scores
    family: str = ""
    strength: str = ""


def score(model: nn.Module, spec: InputSpec, previous: nn.Module | None) -> Scores:
    """Of every detector that can be run."""
    found: Scores = {}
    for name, build in DETECTORS.items():
        options: dict[str, Any] = {"spec": spec} if name in BEHAVIOUR_DETECTORS else {}
        if name not in BEHAVIOUR_DETECTORS and name not in WEIGHT_DETECTORS:
            options = {"previous": previous}
        try:
            found[name] = build(**options)(Broadcast(model)).score
        except NotApplicable:
            continue
    return found


def score_honest(setting: Setting, seed: int) -> list[Scored]:
    spec, _ = examples(setting)
    with scores_only():
        return [
            Scored(scores=score(honest.model, spec, honest.previous))
            for honest in honest_models((setting,), seed=seed)
        ]


def score_crafted(setting: Setting, seeds: range) -> list[Scored]:
    spec, _ = examples(setting)
    with scores_only():
        return [
            Scored(
                scores=score(crafted.model, spec, crafted.previous),
                family=crafted.craft.family,
                strength=crafted.craft.strength,
            )
            for crafted in crafted_models((setting,), seeds=seeds)
        ]


def _run(what: str, settings: Sequence[Setting], given: Any, workers: int) -> list[Scored]:
    """One task a setting, several at a time."""
    task: Callable[[Setting, Any], list[Scored]] = score_honest if what == "honest" else score_crafted
    found: list[Scored] = []
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        workers, mp_context=fresh, initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        for setting, scored in zip(settings, pool.map(task, settings, [given] * len(settings)), strict=True):
            found += scored
            print(f"{setting.name}: {len(found)} {what} models", file=sys.stderr, flush=True)
    return found


def at_level(honest: Sequence[Scored], level: float) -> dict[str, float]:
    """Each detector's threshold that this share of honest models exceeds."""
    return {n: max(q, _LEAST.get(n, -np.inf)) for n, q in _quantiles(honest, level).items()}


def _quantiles(honest: Sequence[Scored], level: float) -> dict[str, float]:
    columns = {n: [s.scores[n] for s in honest if n in s.scores] for n in DETECTORS}
    return {n: float(np.quantile(c, 1 - level, method="higher")) for n, c in columns.items() if c}


def alarm_share(models: Sequence[Scored], limits: Mapping[str, float], names: Sequence[str]) -> float:
    """Share of models for which at least one of the detectors exceeds its threshold."""
    alarms = [any(s.scores.get(n, -np.inf) > limits[n] for n in names if n in limits) for s in models]
    return float(np.mean(alarms)) if alarms else float("nan")


def joint_level(honest: Sequence[Scored], *, target: float = FALSE_ALARMS) -> float:
    """The level for each detector at which all together reach the wanted share of false alarms."""
    names = list(DETECTORS)
    fine = [step / len(honest) for step in range(len(honest) // 10)]
    allowed = [q for q in fine if alarm_share(honest, at_level(honest, q), names) <= target]
    return max(allowed, default=0.0)


def certain(honest: Sequence[Scored]) -> dict[str, float]:
    """Thresholds that no honest model came near."""
    highest, middle = at_level(honest, 0.0), _quantiles(honest, 0.5)
    return {n: top + _MARGIN * (top - middle[n]) for n, top in highest.items()}


def summarise(calibrated: list[Scored], held_out: list[Scored], crafted: list[Scored]) -> dict[str, Any]:
    """The content of calibration.json."""
    level = joint_level(calibrated)
    limits, traps = at_level(calibrated, level), certain(calibrated)
    weights = list(WEIGHT_DETECTORS)
    without_rounds = [*weights, *BEHAVIOUR_DETECTORS]
    groups = {"weights": weights, "all": without_rounds, "with previous": list(DETECTORS)}
    cases = sorted({(c.family, c.strength) for c in crafted})
    table = []
    for family, strength in cases:
        chosen = [c for c in crafted if (c.family, c.strength) == (family, strength)]
        rates = {g: round(alarm_share(chosen, limits, names), 4) for g, names in groups.items()}
        trap = round(alarm_share(chosen, traps, without_rounds), 4)
        table.append(
            {"attack": family, "strength": strength, "models": len(chosen), **rates, "as trap": trap}
        )
    families = sorted({c.family for c in crafted})
    roc = {}
    for family in families:
        chosen = [c for c in crafted if c.family == family]
        points = [at_level(calibrated, q) for q in _ROC_LEVELS]
        roc[family] = [
            [round(alarm_share(who, limit, without_rounds), 4) for who in (held_out, chosen)]
            for limit in points
        ]
    return {
        "made_by": "python -m seepage.guardian.calibrate",
        "calibration_models": len(calibrated),
        "held_out_models": len(held_out),
        "crafted_models": len(crafted),
        "level_per_detector": level,
        "thresholds": {n: {"suspicious": limits[n], "trap": max(traps[n], limits[n])} for n in limits},
        "false_alarms": {g: round(alarm_share(held_out, limits, names), 4) for g, names in groups.items()},
        "false_alarms_as_trap": round(alarm_share(held_out, traps, without_rounds), 4),
        "false_alarms_by_detector": {n: round(alarm_share(held_out, limits, [n]), 4) for n in limits},
        "detection": table,
        "roc": roc,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure everything and write the file."""
    parser = argparse.ArgumentParser(prog="python -m seepage.guardian.calibrate", description=__doc__)
    default = Path(detectors.__file__).with_name("calibration.json")
    parser.add_argument("--out", type=Path, default=default, help="where to write the calibration")
    parser.add_argument("--workers", type=int, default=1, help="processes that measure at a time")
    given = parser.parse_args(arguments)
    calibrated = _run("honest", CALIBRATION, 0, given.workers)
    held_out = _run("honest", HELD_OUT, 1000, given.workers)
    crafted = _run("crafted", HELD_OUT, _CRAFTED_SEEDS, given.workers)
    summary = summarise(calibrated, held_out, crafted)
    given.out.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
