"""The result of a study, read from its folder: rows, the Pareto front and the theoretical bounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from seepage.core.types import INPUT_SPACE
from seepage.record import (
    ADAPTIVE,
    BASELINE,
    AuditLog,
    DefenseRecord,
    Estimate,
    Header,
    Record,
    RunLog,
    plain,
)
from seepage.report.study.leakage import Leak, leak, value_of
from seepage.report.study.robustness import reconstruction_bound


class DefenseRow(Record):
    """One defense at one strength: its price, what still leaked and what theory allows."""

    point: DefenseRecord
    accuracy: Estimate | None
    accuracy_note: str = ""
    chance: float | None = None
    """Share of the tested examples that are of the largest class."""
    lrs: tuple[float, ...] = ()
    """Learning rates that were chosen for it, one for each training."""
    still_rising: bool = False
    """Some training was not at its plateau when its rounds were over."""
    empirical_epsilon: float | None = None
    """By canaries, as of a Gaussian mechanism; a mean over the trainings."""
    epsilon_at_least: float | None = None
    """By canaries, with 95 % confidence, whatever the mechanism: the largest of the trainings."""
    contradicted: bool = False
    """Canaries show more than was promised."""
    held_back: float | None = None
    """Share of the clients' examples that no update of the trainings was made of; None: there were none."""
    leaks: tuple[Leak, ...]
    worst: str = ""
    """The attack that leaked most, adaptive ones included."""
    leakage: Estimate | None = None
    """The worst attack's share of the guess's error removed; None: not known yet. Of inputs, unless every
    attack of the study that got anything got features. The interval is that attack's own."""
    exact: Estimate | None = None
    """The largest share of exact copies that an attack got."""
    bound_seen: float | None = None
    """Reconstruction robustness for what the attacks saw."""
    bound_training: float | None = None
    """The same for the whole training."""
    pareto: bool = False

    @property
    def adapted(self) -> bool:
        """Attackers who know the defense were among the attacks."""
        return any(one.adaptive is not None for one in self.leaks)


@dataclass(frozen=True)
class StudyResult:
    """What a study's log comes to: complete, or as far as it got."""

    log: RunLog
    rows: tuple[DefenseRow, ...]

    @classmethod
    def of(cls, log: RunLog) -> StudyResult:
        leaks = _with_stopped([_leaks(point) for point in log.points])
        counted = _counted_spaces(leaks)
        prior = float(log.header.spec["prior_success"])
        rows = [_row(point, found, counted, prior) for point, found in zip(log.points, leaks, strict=True)]
        marks = pareto_front([(value_of(row.accuracy), value_of(row.leakage)) for row in rows])
        marked = [row.model_copy(update={"pareto": mark}) for row, mark in zip(rows, marks, strict=True)]
        return cls(log, tuple(marked))

    @classmethod
    def read(cls, path: Path | str) -> StudyResult:
        """Read a study's folder, finished or not. Raises LogError with one sentence if it is none."""
        return cls.of(RunLog.read(path, kind="study"))

    def __repr__(self) -> str:
        missing = f", {self.missing} cells missing" if self.missing else ""
        return (
            f"<study '{self.log.header.title}': {len(self.rows)} points{missing}, in {self.log.folder.path}>"
        )

    @property
    def first(self) -> Header:
        """The point without a defense."""
        return self.log.points[0].header

    @property
    def missing(self) -> int:
        """Planned cells that have not been run."""
        return self.log.missing

    def not_measured(self) -> tuple[str, ...]:
        """One sentence for every point of which price or leakage is not known, and for every failed run."""
        return tuple(said for row in self.rows for said in _gaps(row))

    def summary(self) -> None:
        """Print a row for each defense, and the recommendation."""
        from seepage.report.study.terminal import print_study

        print_study(self)

    def to_html(self, path: Path | str | None = None) -> Path:
        """Write the report and return its path (in the study's folder unless another is given)."""
        from seepage.report.study.page import write_study_html

        return write_study_html(self, None if path is None else Path(path))

    def to_json(self) -> dict[str, Any]:
        """Header and rows for machines: plain JSON types only."""
        return {
            "study": plain(self.log.header),
            "rows": plain(self.rows),
            "missing_cells": self.missing,
        }


def pareto_front(points: Sequence[tuple[float | None, float | None]]) -> list[bool]:
    """Which (accuracy, leakage) no other point beats in one without losing in the other.

    Leakage counts to a thousandth: finer differences are rounding, not protection. A point with a part
    unknown is not on the front.

    >>> pareto_front([(0.9, 1.0), (0.8, 0.2), (0.7, 0.3)])
    [True, True, False]
    """
    known = [(a, round(b, 3)) if a is not None and b is not None else None for a, b in points]

    def beaten(point: tuple[float, float]) -> bool:
        return any(
            other is not None and other != point and other[0] >= point[0] and other[1] <= point[1]
            for other in known
        )

    return [point is not None and not beaten(point) for point in known]


def _with_stopped(leaks: Sequence[tuple[Leak, ...]]) -> list[tuple[Leak, ...]]:
    """A defense gets the merit for an attack that it rules out only if the attack works without it."""
    works = {one.attack.key for one in leaks[0] if one.measured}
    return [
        tuple(
            one.stopped() if one.status == "not_applicable" and one.attack.key in works else one
            for one in row
        )
        for row in leaks
    ]


def _gaps(row: DefenseRow) -> Iterator[str]:
    if row.leakage is None:
        reason = next((one.reason for one in row.leaks if one.reason), "no attack was run")
        yield f"{row.point.title}: no attack measured anything: {reason}"
    if row.accuracy is None:
        yield f"{row.point.title}: the accuracy is not known: {row.accuracy_note or 'not run yet'}"
    for one in (one for pair in row.leaks for one in pair.both):
        if row.leakage is not None and one.status in {"failed", "partial", "not_run"}:
            yield f"{row.point.title}, {one.attack.title} ({one.status}): {one.reason}"


def _counted_spaces(leaks: Sequence[Sequence[Leak]]) -> frozenset[str]:
    """Features are not inputs: where some attack of the study rebuilds inputs, only those are compared."""
    found = {one.space for row in leaks for pair in row for one in pair.both if one.main is not None}
    return frozenset({INPUT_SPACE}) if INPUT_SPACE in found else frozenset({INPUT_SPACE} | found)


def _row(log: AuditLog, leaks: tuple[Leak, ...], counted: frozenset[str], prior_success: float) -> DefenseRow:
    point = log.header.point
    assert point is not None
    tested = [cell.batch_scores for cell in log.trainings if cell.batch_scores.get("tested")]
    reached = [(round(one["accuracy"] * one["tested"]), int(one["tested"])) for one in tested]
    every = [one for pair in leaks for one in pair.both if one.space in counted]
    measured = [(one.leakage, _short_title(one)) for one in every if one.leakage is not None]
    leakage, worst = max(measured, key=lambda pair: (pair[0].value, pair[1]), default=(None, ""))
    exact = [one.exact for one in every if one.exact is not None]
    seen = max((one.rounds for one in every), default=0)
    bound = partial(_bound, point, prior_success)
    return DefenseRow(
        point=point,
        accuracy=Estimate.of_counts(reached) if reached else None,
        accuracy_note=next((cell.reason for cell in log.trainings if cell.reason), ""),
        **_of_trainings([cell.batch_scores for cell in log.trainings]),
        leaks=leaks,
        worst=worst,
        leakage=leakage,
        exact=max(exact, key=lambda share: share.value, default=None),
        bound_seen=bound(seen * (point.uses_per_round or 1)),
        bound_training=bound(point.steps or 0),
    )


def _of_trainings(scores: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """What else the record of the trainings says."""

    def of(name: str) -> list[float]:
        return [one[name] for one in scores if name in one]

    return {
        "chance": max(of("chance"), default=None),
        "lrs": tuple(of("lr")),
        "held_back": fmean([one.get("held_back", 0.0) for one in scores]) if of("held_back") else None,
        "still_rising": 0.0 in of("plateau"),
        "empirical_epsilon": fmean(of("empirical epsilon")) if of("empirical epsilon") else None,
        "epsilon_at_least": max(of("epsilon at least"), default=None),
        "contradicted": 1.0 in of("contradicted"),
    }


def _short_title(one: Leak) -> str:
    """The row names the defense already."""
    known = ", knowing the defense" if one.attack.name == ADAPTIVE else ""
    return f"{one.attack.plain.title}{known}"


def _leaks(log: AuditLog) -> tuple[Leak, ...]:
    """One for each attack of the spec, with its adaptive twin."""
    found: dict[str, Leak] = {}
    for ref in log.header.attacks:
        if ref.name == BASELINE:
            continue
        one = leak(ref, log.cells_of(ref), len(log.header.seeds))
        plain = ref.plain.key
        if ref.name == ADAPTIVE and plain in found:
            found[plain] = found[plain].model_copy(update={"adaptive": one})
        else:
            found[ref.key] = one
    return tuple(found.values())


def _bound(point: DefenseRecord, prior_success: float, steps: int) -> float | None:
    """For single examples only: a client's noise says nothing about which of its examples is rebuilt."""
    if point.sigma is None or point.protects != "one example" or steps == 0:
        return None
    return reconstruction_bound(sigma=point.sigma, steps=steps, prior_success=prior_success)
