"""The summary table: one row an attack, already in words, for the page and the terminal alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seepage.core.metric import MetricFacts
from seepage.names.metrics import BESIDE, leading
from seepage.record import BASELINE, AttackSummary, Estimate, Header
from seepage.report.words import DASH, duration, interval, number, percent, text

STATUS = {
    "done": "done",
    "partial": "partial",
    "not_applicable": "not applicable",
    "failed": "failed",
    "not_run": "not run",
}


@dataclass(frozen=True, kw_only=True)
class FigureText:
    """A mean and its interval in words; `note` names the metric where it is not the column's."""

    mean: str = DASH
    interval: str = ""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class AttackRow:
    """One attack."""

    title: str
    key: str
    is_baseline: bool
    status: str
    status_key: str
    reason: str
    exact: str
    main: FigureText
    guess: FigureText
    second: str
    claims: str
    labels: str
    time: str
    rounds: str
    memory: str


@dataclass(frozen=True)
class AttackTable:
    """`main` and `second` are the columns' metrics; `second` is None where the modality has one only."""

    main: MetricFacts
    second: MetricFacts | None
    rows: tuple[AttackRow, ...]
    scored: bool = True
    """False where nobody gave the truth: there are claims, and no figures."""


def build_table(header: Header, summaries: Sequence[AttackSummary]) -> AttackTable:
    """Rows in the order of the log, but the baseline first whatever the log says."""
    modality = header.input.modality
    finished = next((s.scores for s in summaries if s.cells and s.space == "input"), {})
    main = leading(finished, modality)
    second = header.metric(BESIDE[modality]) if modality in BESIDE else None
    ordered = sorted(summaries, key=lambda s: s.attack.name != BASELINE)
    scored = not any(s.cells and s.claims_right is None for s in summaries)
    rows = tuple(_row(header, s, main, second) for s in ordered)
    return AttackTable(main, second if scored else None, rows, scored)


def figure(what: MetricFacts, estimate: Estimate | None, *, note: str = "") -> FigureText:
    """A mean with its interval; a single value has none."""
    if estimate is None:
        return FigureText()
    return FigureText(mean=text(what, estimate.value), interval=interval(estimate, what), note=note)


def _claims(summary: AttackSummary) -> str:
    """How many are right, and how many examples that is where some were claimed more than once."""
    if not summary.claims:
        return "none" if summary.cells and summary.claims_right is None else DASH
    if summary.claims_right is None:
        return f"{summary.claims}, not checked\n({summary.claimed_examples} different)"
    right = f"{summary.claims_right} of {summary.claims}"
    once = summary.claimed_examples == summary.claims_right
    return right if once else f"{right}\n({summary.claimed_examples} different)"


def _row(header: Header, summary: AttackSummary, main: MetricFacts, second: MetricFacts | None) -> AttackRow:
    own = leading(summary.scores, header.input.modality)
    note = "" if own is main else own.words
    ran = summary.cells > 0
    labels = summary.scores.get("label_accuracy")
    # an attack on features has no SSIM: the column stays empty rather than hold another metric
    beside = summary.scores.get(second.name) if second else None
    return AttackRow(
        title=summary.attack.title,
        key=summary.attack.key,
        is_baseline=summary.attack.name == BASELINE,
        status=STATUS.get(summary.status, summary.status),
        status_key=summary.status,
        reason=summary.reason,
        exact=f"{summary.exact} of {summary.examples}" if ran and summary.claims_right is not None else DASH,
        main=figure(own, summary.scores.get(own.name), note=note),
        guess=figure(own, summary.baseline.get(own.name)),
        second=text(second, beside.value) if second and beside else DASH,
        claims=_claims(summary),
        labels=percent(labels.value) if labels else DASH,
        time=duration(summary.seconds) if ran else DASH,
        rounds=str(summary.rounds) if ran else DASH,
        memory=f"{number(summary.peak_memory_mb, 0)} MB" if ran else DASH,
    )
