"""Scores of honest and crafted models, of honest trainings and of crafted models in the middle of one."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from research.guard.crafted_models import crafted, crafted_models, one_of_each_family
from research.guard.honest_models import Setting, examples, honest_models
from research.guard.honest_rounds import Training, trainings
from research.guard.public_models import public_models
from research.guard.thresholds import Scored
from research.guard.trained_models import trained_models, trained_sample, trained_spec
from seepage.core.errors import NotApplicable
from seepage.core.types import Broadcast, Finding, InputSpec, Verdict
from seepage.guardian.detectors import DETECTORS, looking_at
from seepage.guardian.detectors.calibrated import scores_only

PREVIOUS_DETECTORS = ("round_jump", "fresh_start")
HISTORY_DETECTORS = ("step_history", "loss_jump")
_FIRST_ROUND = 3
"""Three earlier models are there."""
_MIDDLE = 6
SAMPLE = 256
"""Examples that a client gives."""


def score_model(
    model: nn.Module,
    spec: InputSpec | None,
    earlier: Sequence[nn.Module] = (),
    sample: Tensor | None = None,
    **who: str,
) -> Scored:
    """Of every detector that can be run without a history; the highest of comparisons with earlier rounds.

    Behaviour is measured on noise and, where there is a sample, on that as well (`on_sample`).
    """
    options: dict[str, dict[str, Any]] = {name: {} for name in looking_at("weights")}
    options |= {name: {"spec": spec} for name in looking_at("behaviour")}
    found = _findings(model, options)
    if sample is not None:
        seen = _findings(model, {n: {"spec": spec, "sample": sample} for n in looking_at("behaviour")})
        found |= {on_sample(name): finding for name, finding in seen.items()}
    for previous in earlier:
        compared = _findings(model, {name: {"previous": previous} for name in PREVIOUS_DETECTORS})
        for name, finding in compared.items():
            found[name] = max(finding, found.get(name, finding), key=lambda one: one.score)
    scores = {name: finding.score for name, finding in found.items()}
    exact = frozenset(name for name, finding in found.items() if finding.verdict is Verdict.TRAP)
    return Scored(scores=scores, exact=exact, **who)


def on_sample(detector: str) -> str:
    """The name under which a detector's score on a sample is kept."""
    return f"{detector}, on a sample"


def score_round(model: nn.Module, training: Training, number: int) -> dict[str, float]:
    """Of the detectors that compare with earlier rounds, for a model received in this round."""
    history = training.models[:number]
    options: dict[str, dict[str, Any]] = {
        "step_history": {"history": history},
        "loss_jump": {"history": history, "batch": training.own},
    }
    return _scores(model, options)


def _scores(model: nn.Module, options: dict[str, dict[str, Any]]) -> dict[str, float]:
    return {name: finding.score for name, finding in _findings(model, options).items()}


def _findings(model: nn.Module, options: dict[str, dict[str, Any]]) -> dict[str, Finding]:
    found = {}
    with scores_only():
        for name, given in options.items():
            try:
                found[name] = DETECTORS[name](**given)(Broadcast(model))
            except NotApplicable:
                continue
    return found


def score_honest(setting: Setting, seed: int) -> list[Scored]:
    spec, batch = examples(setting)
    return [
        score_model(
            honest.model,
            spec,
            honest.earlier,
            batch.inputs[-SAMPLE:],
            group=setting.name,
            name=f"{setting.name}, {honest.initialiser}, {honest.stage}",
        )
        for honest in honest_models((setting,), seed=seed)
    ]


def score_crafted(setting: Setting, seeds: range) -> list[Scored]:
    spec, batch = examples(setting)
    return [
        score_model(
            each.model,
            spec,
            [each.previous],
            batch.inputs[-SAMPLE:],  # none of the auxiliary data, which are the first
            group=setting.name,
            family=each.craft.family,
            strength=each.craft.strength,
        )
        for each in crafted_models((setting,), seeds=seeds)
    ]


def score_trained(family: str, seed: int) -> list[Scored]:
    """Of one family of `trained_models`."""
    return [
        score_model(each.model, trained_spec(), sample=trained_sample(), group=family, name=each.name)
        for each in trained_models(family, seed=seed)
    ]


def score_public(held_out: bool) -> list[Scored]:
    """Of the public models on one side of the split: of their weights alone, for none can be run."""
    return [
        score_model(each.model, None, group=each.family, name=each.name)
        for each in public_models()
        if each.held_out == held_out
    ]


def score_trainings(setting: Setting, seed: int) -> list[Scored]:
    """The highest scores of all rounds of each honest training: an alarm in any of them is one too many."""
    return [
        _highest(training, f"{setting.name}, training {number}")
        for number, training in enumerate(trainings(setting, seed=seed))
    ]


def score_interrupted(setting: Setting, seed: int) -> list[Scored]:
    """The same, then crafted models, one of each family, that arrive in the middle of each training."""
    found = []
    for number, training in enumerate(trainings(setting, seed=seed)):
        found.append(_highest(training, f"{setting.name}, training {number}"))
        for craft in one_of_each_family():
            model = crafted(craft, setting, training.models[_MIDDLE - 1], seed=seed)
            if model is not None:
                scores = score_round(model, training, _MIDDLE)
                found.append(Scored(scores=scores, group=setting.name, family=craft.family))
    return found


def _highest(training: Training, name: str) -> Scored:
    rounds = [
        score_round(model, training, place)
        for place, model in enumerate(training.models)
        if place >= _FIRST_ROUND
    ]
    highest = {detector: max(scores[detector] for scores in rounds) for detector in rounds[0]}
    return Scored(scores=highest, group=training.setting.name, name=name)


Task = Callable[[Any, Any], list[Scored]]


def pool_of(workers: int) -> ProcessPoolExecutor:
    """Fresh processes of one thread each, so that a figure does not depend on how many there are."""
    fresh = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=fresh, initializer=torch.set_num_threads, initargs=(1,))


def gather(
    task: Task, settings: Sequence[Setting | str], given: Any, pool: ProcessPoolExecutor
) -> list[Scored]:
    """One task a setting, several at a time."""
    found: list[Scored] = []
    for setting, scored in zip(settings, pool.map(task, settings, [given] * len(settings)), strict=True):
        found += scored
        name = setting if isinstance(setting, str) else setting.name
        print(f"{task.__name__}, {name}: {len(found)}", file=sys.stderr, flush=True)
    return found
