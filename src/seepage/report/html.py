"""The page of an audit: verdict, table, and a section for each attack."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from seepage.core.metric import MetricFacts
from seepage.names.metrics import BESIDE, leading
from seepage.record import (
    BASELINE,
    SCHEMA_VERSION,
    AttackSummary,
    AuditLog,
    Cell,
    Header,
    summarise,
    write_atomically,
)
from seepage.report.columns import Columns, build_columns
from seepage.report.distribution import Distribution, build_distribution
from seepage.report.frame import render
from seepage.report.front import build_front
from seepage.report.gallery import Gallery, build_galleries
from seepage.report.gaps import not_tried
from seepage.report.impact import Impact, build_impact
from seepage.report.judgement import verdict
from seepage.report.plan import by_reason
from seepage.report.sheet import one_page
from seepage.report.table import STATUS, FigureText, build_table, figure
from seepage.report.vantage import protocol
from seepage.report.words import (
    alike,
    class_name,
    duration,
    join,
    number,
    plural,
    sentence,
    short_number,
    things,
)


@dataclass(frozen=True, kw_only=True)
class Section:
    """One attack on the page."""

    summary: AttackSummary
    is_baseline: bool
    status: str
    reason: str
    figures: tuple[tuple[MetricFacts, FigureText, FigureText], ...]
    """Per-example metrics: the attack's figure, the guess's."""
    batch_figures: tuple[tuple[MetricFacts, FigureText], ...]
    columns: Columns | None
    cost: str
    notes: tuple[tuple[str, int], ...]
    """Each with the number of others that differ from it in figures alone."""
    galleries: tuple[Gallery, ...]
    seeds_left: int
    distribution: Distribution | None
    impact: Impact | None
    labels: tuple[tuple[str, int, int], ...]
    """Classes with the number of examples inferred and true, summed over seeds."""


def render_html(log: AuditLog) -> str:
    """The whole report as one self-contained page; a partial log gives a partial report that says so."""
    header, summaries = log.header, summarise(log)
    # the baseline's own section is for reference and comes last
    ordered = sorted(summaries, key=lambda s: s.attack.name == BASELINE)
    ruling = verdict(log, summaries)
    front = build_front(log, summaries, ruling)
    return render(
        "report.html.j2",
        tile=" / ".join(str(n) for n in reversed(header.input.shape[-2:])),
        front=front,
        sheet=one_page(log, summaries, ruling, front),
        exact=header.metric("exact"),
        terms=_terms(header, summaries),
        header=header,
        schema_version=SCHEMA_VERSION,
        verdict=ruling,
        anchors={s.attack.key: i for i, s in enumerate(summaries)},
        badge=ruling.badge,
        table=build_table(header, summaries),
        sections=[build_section(log, s) for s in ordered],
        tolerance=tolerance_in_words(log, [s.space for s in summaries]),
        interval_note=_interval_note(summaries),
        protocol=[(key, _plain(value)) for key, value in protocol(header).items()],
        spec=header.spec,
        missing=_missing(log),
        left_out=[(join(names), sentence(reason)) for reason, names in by_reason(header.not_tried).items()],
        not_tried=[*not_tried(header.not_tried)],
        shape=" × ".join(str(n) for n in header.input.shape),
        noun=things(header, 2).split()[1],
        one=things(header, 1).split()[1],
    )


def _terms(header: Header, summaries: Sequence[AttackSummary]) -> list[MetricFacts]:
    """Every metric on the page, once."""
    names = dict.fromkeys(["exact", *(name for summary in summaries for name in summary.scores)])
    beside = BESIDE.get(header.input.modality)
    names |= dict.fromkeys([leading((), header.input.modality).name, *([beside] if beside else [])])
    return [header.metric(name) for name in names]


def write_html(log: AuditLog, path: Path | None = None) -> Path:
    """Write the report beside the log, or to `path`; returns where it is."""
    target = log.folder.report_file if path is None else path
    write_atomically(target, render_html(log).encode())
    return target


def build_section(log: AuditLog, summary: AttackSummary) -> Section:
    """Everything the page says about one attack."""
    cells = log.cells_of(summary.attack)
    galleries, seeds_left = build_galleries(log, cells)
    per_example = [key for key in summary.scores if _is_per_example(cells, key)]
    return Section(
        summary=summary,
        is_baseline=summary.attack.name == BASELINE,
        status=STATUS.get(summary.status, summary.status),
        reason=sentence(summary.reason),
        figures=tuple(
            _figure_pair(log.header.metric(key), summary) for key in _main_first(log, summary, per_example)
        ),
        batch_figures=tuple(
            (log.header.metric(key), figure(log.header.metric(key), estimate))
            for key, estimate in summary.scores.items()
            if key not in per_example
        ),
        columns=build_columns(summary),
        cost=_cost(summary),
        notes=alike(summary.notes),
        galleries=galleries,
        seeds_left=seeds_left,
        distribution=build_distribution(log.header, cells),
        impact=build_impact(log.header, cells),
        labels=_labels(log, cells),
    )


def _is_per_example(cells: Sequence[Cell], key: str) -> bool:
    return any(key in example.scores for cell in cells for example in cell.examples[:1])


def _main_first(log: AuditLog, summary: AttackSummary, keys: Sequence[str]) -> list[str]:
    main = leading(summary.scores, log.header.input.modality).name
    return sorted(keys, key=lambda key: key != main)


def _figure_pair(what: MetricFacts, summary: AttackSummary) -> tuple[MetricFacts, FigureText, FigureText]:
    guess = summary.baseline.get(what.name)
    return what, figure(what, summary.scores[what.name]), figure(what, guess)


def _cost(summary: AttackSummary) -> str:
    if not summary.cells:
        return ""
    return (
        f"{duration(summary.seconds)} a run, {plural(summary.rounds, 'round')} of the protocol, "
        f"{number(summary.peak_memory_mb, 0)} MB of memory at most. The clients' own training is not counted."
    )


def _labels(log: AuditLog, cells: Sequence[Cell]) -> tuple[tuple[str, int, int], ...]:
    inferred: dict[int, int] = {}
    true: dict[int, int] = {}
    for cell in cells:
        if cell.label_counts is not None and cell.true_label_counts is not None:
            for total, counts in ((inferred, cell.label_counts), (true, cell.true_label_counts)):
                for label, count in enumerate(counts):
                    total[label] = total.get(label, 0) + count
    shown = [label for label in sorted(true | inferred) if inferred.get(label) or true.get(label)]
    return tuple(
        (class_name(log.header, label), inferred.get(label, 0), true.get(label, 0)) for label in shown
    )


def tolerance_in_words(log: AuditLog, spaces: Iterable[str] = ()) -> list[str]:
    """What `exact` means in this log; `spaces` are those its attacks worked in."""
    header, tolerance = log.header, log.header.exact_tolerance
    limit = f"{short_number(100 * tolerance)} %"
    said = []
    if header.input.modality == "text":
        said.append("A text counts as exact when every token is the right one.")
    elif header.input.modality == "image":
        said.append(
            f"An image counts as exact when no value in it is off by more than {limit} of the value range, "
            f"that is {short_number(tolerance * 255)} of 255 grey levels."
        )
    else:
        said += _rows_in_words(log, limit)
    if any(space != "input" for space in spaces):
        said.append(f"Features count as exact when none is off by more than {limit} of their own range.")
    return said


def _rows_in_words(log: AuditLog, limit: str) -> list[str]:
    record = log.header.input
    if not record.column_kinds:  # a log that judges every column alike
        unit = "its column's standard deviation" if record.value_range is None else "the value range"
        return [f"A row counts as exact when no value in it is off by more than {limit} of {unit}."]
    said = [
        "A row counts as exact when each of its values is right: whole numbers and categories equal after "
        f"rounding, every other value within {limit} of its column's standard deviation, taken over all "
        f"{log.header.data_examples:,} rows at hand."
    ]
    return [*said, record.fed] if record.fed else said


def _interval_note(summaries: Sequence[AttackSummary]) -> str:
    note = (
        "Intervals are made to hold the mean over further batches in 95 % of such audits. Examples of one "
        "batch share an update, so batches are what counts: Student's t over them, wider on the side of a "
        "long tail; for shares a beta-binomial model of the counts, never narrower than Clopper and "
        "Pearson's interval. With few batches they are wide; more seeds make them narrower."
    )
    if max((s.cells for s in summaries), default=0) == 1:
        note += (
            " There was only one batch, so the intervals show the spread within it and say nothing about "
            "other batches: add seeds to learn more."
        )
    return note


def _missing(log: AuditLog) -> tuple[str, ...]:
    there = {cell.id for cell in log.cells}
    return tuple(id_ for _, _, id_ in log.header.planned() if id_ not in there)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
