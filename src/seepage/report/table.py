"""The summary table: one row an attack, already in words, for the page and the terminal alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seepage.log import BASELINE, AttackSummary, Estimate, Header
from seepage.report.measures import MAIN, MEASURES, SECOND, Measure, measure, summary_measure
from seepage.report.words import DASH, duration, number, percent

STATUS = {
    "done": "done",
    "partial": "partial",
    "not_applicable": "not applicable",
    "failed": "failed",
    "not_run": "not run",
}


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A mean and its interval in words; `note` names the metric where it is not the column's."""

    mean: str = DASH
    interval: str = ""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One attack."""

    title: str
    key: str
    is_baseline: bool
    status: str
    status_key: str
    reason: str
    exact: str
    main: Figure
    guess: Figure
    second: str
    claims: str
    labels: str
    time: str
    rounds: str
    memory: str


@dataclass(frozen=True)
class Table:
    """`main` and `second` are the columns' metrics; `second` is None where the modality has one only."""

    main: Measure
    second: Measure | None
    rows: tuple[Row, ...]


def build_table(header: Header, summaries: Sequence[AttackSummary]) -> Table:
    """Rows in the order of the log, but the baseline first whatever the log says."""
    finished = [s for s in summaries if s.cells and s.space == "input"]
    main = summary_measure(header, finished[0]) if finished else MEASURES[MAIN[header.input.modality][0]]
    second_key = SECOND[header.input.modality]
    second = measure(second_key) if second_key else None
    ordered = sorted(summaries, key=lambda s: s.attack.name != BASELINE)
    return Table(main, second, tuple(_row(header, s, main, second) for s in ordered))


def figure(what: Measure, estimate: Estimate | None, *, note: str = "") -> Figure:
    """A mean with its interval; a single value has none."""
    if estimate is None:
        return Figure()
    spread = what.range_text(estimate) if estimate.n > 1 else ""
    return Figure(mean=what.text(estimate.value), interval=spread, note=note)


def _claims(summary: AttackSummary) -> str:
    """How many are right, and how many examples that is where some were claimed more than once."""
    if not summary.claims:
        return DASH
    right = f"{summary.claims_right} of {summary.claims}"
    once = summary.claimed_examples == summary.claims_right
    return right if once else f"{right}\n({summary.claimed_examples} different)"


def _row(header: Header, summary: AttackSummary, main: Measure, second: Measure | None) -> Row:
    own = summary_measure(header, summary)
    note = "" if own is main else own.words
    ran = summary.cells > 0
    labels = summary.scores.get("label_accuracy")
    # an attack on features has no SSIM: the column stays empty rather than hold another metric
    beside = summary.scores.get(second.key) if second else None
    return Row(
        title=summary.attack.title,
        key=summary.attack.key,
        is_baseline=summary.attack.name == BASELINE,
        status=STATUS.get(summary.status, summary.status),
        status_key=summary.status,
        reason=summary.reason,
        exact=f"{summary.exact} of {summary.examples}" if ran else DASH,
        main=figure(own, summary.scores.get(own.key), note=note),
        guess=figure(own, summary.baseline.get(own.key)),
        second=second.text(beside.value) if second and beside else DASH,
        claims=_claims(summary),
        labels=percent(labels.value) if labels else DASH,
        time=duration(summary.seconds) if ran else DASH,
        rounds=str(summary.rounds) if ran else DASH,
        memory=f"{number(summary.peak_memory_mb, 0)} MB" if ran else DASH,
    )
