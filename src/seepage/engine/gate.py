"""The `fail_on` thresholds of a spec: for use in continuous integration. What was not measured never passes.

A threshold is about an attack's mean over all examples of all seeds. The gate passes if at least one attack
measured the metric and every attack of the audit that could measure it did, for every seed, and stayed below.

- A measured leak is a leak, whatever else is missing.
- An attack that was asked for and failed, was stopped halfway or cannot work here leaves the gate unmeasured.
  Those that the audit chose by itself (`attacks = "auto"`, the adaptive twins) may turn out not to fit.
- Features of a layer are no inputs. An attack that rebuilt features leaves a threshold on inputs unmeasured,
  unless features are judged as well (a threshold on `cosine` or `relative_error`), or the threshold is on
  `exact` and fewer features than that came out exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from seepage.core.errors import SpecError
from seepage.core.metric import MetricFacts
from seepage.core.registry import unknown
from seepage.core.types import INPUT_SPACE, Modality
from seepage.metrics import METRICS
from seepage.names import metrics as names
from seepage.record import ADAPTIVE, BASELINE, AttackRef, AuditLog, Cell
from seepage.record.packed import where


@dataclass(frozen=True)
class Ruling:
    """What the thresholds say about a log, one sentence for each finding."""

    above: tuple[str, ...] = ()
    """Attacks whose mean is at least as good for the server as a threshold."""
    not_measured: tuple[str, ...] = ()
    """What a threshold asks for and the log does not hold."""

    @property
    def passed(self) -> bool:
        return not self.above and not self.not_measured


def check_thresholds(thresholds: Mapping[str, float], asked: Sequence[str] = ()) -> None:
    """Refuse metrics that this audit does not record, and thresholds that no value can reach.

    asked: what it computes beside the metrics of every audit.

    >>> check_thresholds({"exact": 1.5})
    Traceback (most recent call last):
    ...
    seepage.core.errors.SpecError: fail_on: exact lies between 0 and 1, so a threshold of 1.5 would never be \
reached: give one inside.
    """
    for name, threshold in thresholds.items():
        if name not in names.METRICS and name not in asked:
            raise SpecError(unknown("metric in fail_on", name, [*names.METRICS, *asked]))
        metric = _metric(name)
        if metric.on_request and name not in asked:
            raise SpecError(
                f"fail_on: {name} is recorded only where metrics names it, so here it would never be "
                f"measured: use {' or '.join(_recorded(metric.modalities))}."
            )
        low, high = metric.reach
        if not (math.isfinite(threshold) and low <= threshold <= high):
            bounds = f"between {low:g} and {high:g}" if math.isfinite(low) else f"at {high:g} or below"
            bounds = f"at {low:g} or above" if not math.isfinite(high) else bounds
            raise SpecError(
                f"fail_on: {name} lies {bounds}, so a threshold of {threshold:g} would never be reached: "
                "give one inside."
            )


def check_modality(thresholds: Mapping[str, float], modality: Modality) -> None:
    """Refuse metrics that this kind of data does not have.

    >>> check_modality({"psnr": 20.0}, Modality.TABULAR)
    Traceback (most recent call last):
    ...
    seepage.core.errors.SpecError: fail_on: psnr is measured on image data, and these are tabular, so it \
would never be measured: use exact or rmse.
    """
    for name in thresholds:
        there = _metric(name).modalities
        if modality not in there:
            raise SpecError(
                f"fail_on: {name} is measured on {' and '.join(sorted(there))} data, and these are "
                f"{modality}, so it would never be measured: use {' or '.join(_recorded({modality}))}."
            )


def _metric(name: str) -> MetricFacts:
    """seepage's own, or one that the user names."""
    return names.METRICS.get(name) or METRICS.find(name)


def _recorded(modalities: Iterable[str]) -> list[str]:
    """Metrics of single inputs that an audit of such data records."""
    return [
        metric.name
        for metric in names.METRICS.values()
        if {*modalities} <= {*metric.modalities}
        and metric.level == "example"
        and metric.space == "input"
        and not metric.on_request
    ]


def rule(log: AuditLog, thresholds: Mapping[str, float]) -> Ruling:
    """Hold a log against the thresholds. Without any, something must have been measured at all."""
    attacks = [ref for ref in log.header.attacks if ref.name != BASELINE]
    if not thresholds:
        cells = log.cells_where(lambda c: c.attack.name != BASELINE)
        if any(c.status == "done" and _finite(_all_values(c)) for c in cells):
            return Ruling()
        return Ruling(not_measured=(_nothing_at_all(cells),))
    above: list[str] = []
    gaps: list[str] = []
    for name, threshold in thresholds.items():
        metric = log.header.metric(name)
        readings = [_Reading.of(log, ref, metric, thresholds) for ref in attacks]
        above += [said for one in readings if (said := one.at_or_above(threshold))]
        by_reason: dict[str, list[str]] = {}
        for one in readings:
            if one.gap:
                by_reason.setdefault(one.gap, []).append(one.attack.title)
        missing = [f"{', '.join(names)}: {why}" for why, names in by_reason.items()]
        if not missing and not any(one.values for one in readings):
            missing = [f"no attack of this audit measured {name} on {_what(metric)}."]
        gaps += missing
    return Ruling(tuple(above), tuple(gaps))


@dataclass(frozen=True)
class _Reading:
    """One metric of one attack: every finite value, and why there are not more."""

    attack: AttackRef
    metric: MetricFacts
    values: tuple[float, ...]
    gap: str

    @classmethod
    def of(
        cls, log: AuditLog, attack: AttackRef, metric: MetricFacts, thresholds: Mapping[str, float]
    ) -> _Reading:
        cells = log.cells_of(attack)
        right = where(cells, lambda c: c.status == "done" and _in_space(c, metric))
        values = [v for c in right for v in _values(c, metric)]
        gap = _unfinished(log, attack, cells, metric) or _unread(log, cells, metric, thresholds)
        if not gap and len(_finite(values)) < len(values):
            gap = f"{metric.name} is not a number for some examples."
        return cls(attack, metric, tuple(_finite(values)), gap)

    def at_or_above(self, threshold: float) -> str:
        """The sentence for a mean that is as bad as the threshold; empty below it."""
        if not self.values:
            return ""
        mean, higher = math.fsum(self.values) / len(self.values), self.metric.higher_leaks
        if not (mean >= threshold if higher else mean <= threshold):
            return ""
        relation = "at or above" if higher else "at or below"
        return (
            f"{self.attack.title}: {self.metric.name} is {mean:.4g}, {relation} the threshold {threshold:g}."
        )


def _unfinished(log: AuditLog, attack: AttackRef, cells: Sequence[Cell], metric: MetricFacts) -> str:
    """Why some seeds of this attack have no result; empty where all have, or nobody asked for them."""
    planned = len(log.header.seeds)
    stopped = where(cells, lambda c: c.status != "done")
    if len(stopped) == planned and all(c.status == "not_applicable" for c in stopped):
        chosen_by_us = attack.name == ADAPTIVE or log.header.spec.get("attacks") == "auto"
        return (
            ""
            if chosen_by_us
            else f"{metric.name} was not measured, for the attack cannot work here: {_why(stopped)}"
        )
    if stopped:
        words = "failed" if any(c.status == "failed" for c in stopped) else "did not apply"
        runs = f"{len(stopped)} of {planned} runs, which {words}"
        return f"{metric.name} was not measured in {runs}: {_why(stopped)}"
    if len(cells) < planned:
        return f"{planned - len(cells)} of {planned} runs are missing: run the same command again to finish."
    return ""


def _unread(
    log: AuditLog, cells: Sequence[Cell], metric: MetricFacts, thresholds: Mapping[str, float]
) -> str:
    """Why a finished attack has no value of this metric; empty where it need not have one."""
    done = where(cells, lambda c: c.status == "done")
    elsewhere = where(done, lambda c: not _in_space(c, metric))
    if elsewhere and metric.space == "input":
        if any(log.header.metric(name).space == "features" for name in thresholds):
            return ""  # judged there
        if metric.name == "exact" and _mean(elsewhere, metric) < thresholds["exact"]:
            return ""  # no exact features, hence no exact inputs by way of them
        return (
            f"{metric.name} was not measured on inputs, for it rebuilt the features that enter layer "
            f"'{elsewhere[0].space}': judge those with a threshold on cosine or relative_error, or leave the "
            "attack out."
        )
    inside = where(done, lambda c: _in_space(c, metric))
    lacking = where(inside, lambda c: not _values(c, metric))
    # A whole batch's figures (labels, rows) are not every attack's to give.
    if lacking and (metric.level == "example" or len(lacking) < len(inside)):
        return f"{metric.name} is missing in {len(lacking)} of {len(done)} finished runs."
    return ""


def _mean(cells: Sequence[Cell], metric: MetricFacts) -> float:
    """NaN, which is below nothing, where a value is missing or no number."""
    values = [v for c in cells for v in _values(c, metric)]
    return math.fsum(values) / len(values) if values else math.nan


def _in_space(cell: Cell, metric: MetricFacts) -> bool:
    return metric.space == "any" or (metric.space == "input") == (cell.space == INPUT_SPACE)


def _values(cell: Cell, metric: MetricFacts) -> list[float]:
    if metric.level == "batch":
        return [cell.batch_scores[metric.name]] if metric.name in cell.batch_scores else []
    return [e.scores[metric.name] for e in cell.examples if metric.name in e.scores]


def _all_values(cell: Cell) -> list[float]:
    return [*cell.batch_scores.values(), *(v for e in cell.examples for v in e.scores.values())]


def _finite(values: Sequence[float]) -> list[float]:
    return [v for v in values if math.isfinite(v)]


def _why(cells: Sequence[Cell]) -> str:
    reason = next((c.reason for c in cells if c.reason), "no reason is recorded")
    return reason if reason.endswith((".", "!", "?")) else f"{reason}."


def _what(metric: MetricFacts) -> str:
    return {"input": "inputs", "features": "a layer's features", "any": "anything"}[metric.space]


def _nothing_at_all(cells: Sequence[Cell]) -> str:
    if not cells:
        return "no attack was run."
    if any(c.status == "done" and c.claims_right is None for c in cells):
        return "nobody gave the truth behind these exchanges (--truth), so that nothing was scored."
    names = ", ".join(dict.fromkeys(c.attack.title for c in cells))
    return f"no attack finished ({names}): {_why(cells)}"
