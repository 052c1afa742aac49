"""The comparison itself: may these runs be compared, what differs, and does a later one give away less?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seepage.core.errors import SpecError
from seepage.record import AttackSummary, AuditLog, plain, summarise
from seepage.report.compared.difference import Difference, Word, difference
from seepage.report.compared.settings import Rows, changed, circumstances
from seepage.report.compared.sides import Side, counted, sides, worst
from seepage.report.judgement import AuditVerdict, strongest, verdict
from seepage.report.study.leakage import Leak
from seepage.report.study.words import leak_text
from seepage.report.words import join, percent, share, with_interval


@dataclass(frozen=True, kw_only=True)
class Run:
    """One of the runs."""

    name: str
    log: AuditLog
    summaries: tuple[AttackSummary, ...]
    verdict: AuditVerdict
    sides: dict[str, Side]
    worst: Leak | None
    """The attack that got most."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """A later run against the first."""

    name: str
    word: Word
    said: str
    """One sentence."""
    difference: Difference | None
    """Of the worst attacks' leakage."""
    gaps: tuple[str, ...] = ()
    """Attacks that leaked at first and were not measured here."""
    also: str = ""
    """A sentence about those that leaked little at first, so that the answer does not hang on them."""


@dataclass(frozen=True, kw_only=True)
class AttackLine:
    """One attack over all runs."""

    name: str
    sides: tuple[Side | None, ...]
    """None: the run does not know of it."""
    differences: tuple[Difference | None, ...]
    """Of each later run from the first."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What `seepage compare` shows."""

    runs: tuple[Run, ...]
    changes: tuple[Change, ...]
    lines: tuple[AttackLine, ...]
    changed: Rows
    circumstances: Rows

    def __repr__(self) -> str:
        return f"<comparison of {len(self.runs)} runs: {self.headline}>"

    @property
    def headline(self) -> str:
        if len(self.changes) == 1:
            return self.changes[0].said
        each = join([f"{change.name}: {change.word}" for change in self.changes])
        return f"Compared with {self.runs[0].name}, {each}."

    @property
    def told(self) -> bool:
        """Whether every later run could be compared with the first."""
        return all(change.word != "not measured" for change in self.changes)

    def summary(self) -> None:
        """Print the answer, what differs, and one line an attack."""
        from seepage.report.compared.terminal import print_comparison

        print_comparison(self)

    def to_html(self, path: Path | str) -> Path:
        """Write all runs on one page and return its path."""
        from seepage.report.compared.page import write_comparison_html

        return write_comparison_html(self, Path(path))

    def to_json(self) -> dict[str, Any]:
        """For machines: plain JSON types only."""
        return {
            "headline": self.headline,
            "runs": [_run_json(run) for run in self.runs],
            "changes": [
                {
                    "run": change.name,
                    "answer": change.word,
                    "said": change.said,
                    "difference": plain(change.difference),
                    "not_measured": list(change.gaps),
                }
                for change in self.changes
            ],
            "attacks": [
                {
                    "name": line.name,
                    "runs": [None if side is None else _side_json(side) for side in line.sides],
                    "differences": plain(line.differences),
                }
                for line in self.lines
            ],
            "changed": {name: list(values) for name, values in self.changed},
            "circumstances": {name: list(values) for name, values in self.circumstances},
        }


def compare_logs(logs: Sequence[AuditLog], names: Sequence[str] = ()) -> Comparison:
    """names: what to call the runs; by default their folders. Raises SpecError where a comparison would
    mislead."""
    if len(logs) < 2:
        raise SpecError("a comparison needs two runs or more: give their folders, the first to compare with.")
    if names and len(names) != len(logs):
        raise SpecError(f"there are {len(logs)} runs and {len(names)} names: give one name for each run.")
    called = list(names) if names else _folders(logs)
    found = [sides(log) for log in logs]
    spaces = counted(found)
    runs = tuple(_run(name, log, own, spaces) for name, log, own in zip(called, logs, found, strict=True))
    for run in runs[1:]:
        _check(runs[0], run)
    every = dict.fromkeys(name for run in runs for name in run.sides)
    lines = [_line(name, runs) for name in every]
    headers = [run.log.header for run in runs]
    return Comparison(
        runs=runs,
        changes=tuple(_change(runs[0], run) for run in runs[1:]),
        lines=tuple(line for line in lines if any(side and side.leak for side in line.sides)),
        changed=changed(headers),
        circumstances=circumstances(headers),
    )


def _folders(logs: Sequence[AuditLog]) -> list[str]:
    """The shortest ends of their paths that tell them apart."""
    paths = [log.folder.path.resolve() for log in logs]
    for length in range(1, max(len(path.parts) for path in paths) + 1):
        ends = ["/".join(path.parts[-length:]) for path in paths]
        if len(set(ends)) == len(ends):
            return ends
    raise SpecError(f"'{paths[0].name}' is compared with itself: give the folders of different runs.")


def _run(name: str, log: AuditLog, found: dict[str, Side], spaces: frozenset[str]) -> Run:
    summaries = tuple(summarise(log))
    return Run(
        name=name,
        log=log,
        summaries=summaries,
        verdict=verdict(log, summaries),
        sides=found,
        worst=worst(found, spaces),
    )


def _check(first: Run, other: Run) -> None:
    """Refuse what would compare unlike things."""
    data = [
        f"{h.data_name}, {h.data_examples:,} examples of shape {'×'.join(map(str, h.input.shape))}, "
        f"{h.input.num_classes} classes"
        for h in (first.log.header, other.log.header)
    ]
    if data[0] != data[1]:
        raise SpecError(
            f"'{first.name}' and '{other.name}' cannot be compared, for their data differ ({data[0]}; "
            f"{data[1]}): audit both on the same data."
        )
    limits = [run.log.header.exact_tolerance for run in (first, other)]
    if limits[0] != limits[1]:
        raise SpecError(
            f"'{first.name}' and '{other.name}' cannot be compared, for an exact copy may be off by "
            f"{limits[0]:g} in one and by {limits[1]:g} in the other: audit both with one exact_tolerance."
        )
    for run in (first, other):
        if any(one.cells and one.claims_right is None for one in run.summaries):
            raise SpecError(
                f"'{run.name}' cannot be compared, for it was audited without the truth and nothing in it is "
                "scored: give the truth (--truth)."
            )


def _line(name: str, runs: Sequence[Run]) -> AttackLine:
    found = tuple(run.sides.get(name) for run in runs)
    return AttackLine(name=name, sides=found, differences=tuple(_apart(found[0], one) for one in found[1:]))


def _apart(first: Side | None, later: Side | None) -> Difference | None:
    """Inputs and features of a layer, or those of two layers, have no difference."""
    if first is None or later is None or first.leak is None or later.leak is None:
        return None
    return (
        difference(first.leak.leakage, later.leak.leakage) if first.leak.space == later.leak.space else None
    )


def _change(first: Run, later: Run) -> Change:
    gaps = _gaps(first, later)
    silent = [
        run.name for run in (first, later) if run.verdict.outcome == "not_measured" or run.worst is None
    ]
    if silent:
        said = f"Nothing can be said of {later.name}: no attack on examples was measured in {join(silent)}."
        return Change(name=later.name, word="not measured", said=said, difference=None, gaps=tuple(gaps))
    assert first.worst is not None and later.worst is not None
    apart = difference(first.worst.leakage, later.worst.leakage)
    word: Word = "not measured" if apart is None else apart.word
    open_ = [name for name, near in gaps.items() if near]
    if open_ and word != "more":
        word = "not measured"
    return Change(
        name=later.name,
        word=word,
        said=_said(word, first, later, open_),
        difference=apart,
        gaps=tuple(gaps),
        also=_also(later, [name for name in gaps if name not in open_]),
    )


def _gaps(first: Run, later: Run) -> dict[str, bool]:
    """Attacks that leaked at first and were not measured later, and whether they got about as much as the
    worst one: those might make all the difference."""
    leaked = dict.fromkeys(one.attack.plain.name for one in strongest(first.log, first.summaries))
    absent = Side(status="not measured")
    names = [name for name in leaked if later.sides.get(name, absent).status == "not measured"]
    most = None if first.worst is None else first.worst.leakage
    found = {}
    for name in names:
        own = first.sides[name].leak
        apart = None if own is None else difference(most, own.leakage)
        found[name] = apart is None or apart.word != "less"
    return found


def _said(word: Word, first: Run, later: Run, open_: list[str]) -> str:
    figures = _figures(first, later)
    if word == "not measured":
        verb = "was" if len(open_) == 1 else "were"
        return (
            f"It cannot be told whether {later.name} gives away less than {first.name}: {join(open_)}, which "
            f"leaked there, {verb} not measured; name them as attacks, or give more time. What was measured: "
            f"{figures}."
        )
    if word == "no difference shown":
        assert first.worst is not None and later.worst is not None
        alike = percent(first.worst.leakage) == percent(later.worst.leakage)
        wide = "" if alike else " It lies within its interval, which more seeds make narrower (--seeds 10)."
        return f"No difference between {later.name} and {first.name} is shown: {figures}.{wide}"
    return f"{later.name} gives away {word} than {first.name}: {figures}."


def _also(later: Run, gaps: list[str]) -> str:
    verb = "was" if len(gaps) == 1 else "were"
    return f"{join(gaps)}, which leaked less at first, {verb} not measured in {later.name}." if gaps else ""


def _figures(first: Run, later: Run) -> str:
    """Exact copies and leakage of the worst attack in each."""
    before, after = first.worst, later.worst
    assert before is not None and after is not None
    exact = (
        f"{share(later.log.header, after.exact_count, after.examples)} came out exactly, instead of "
        f"{before.exact_count} of {before.examples}"
    )
    same = before.leakage is not None and after.leakage is not None
    leaks = f"; the leakage is {percent(after.leakage)}, instead of {percent(before.leakage)}" if same else ""
    return f"by the worst attack of each, {exact}{leaks}"


def _run_json(run: Run) -> dict[str, Any]:
    return {
        "name": run.name,
        "folder": str(run.log.folder.path),
        "title": run.log.header.title,
        "outcome": run.verdict.outcome,
        "headline": run.verdict.headline,
        "worst_attack": None if run.worst is None else run.worst.attack.title,
        "missing_cells": run.log.missing,
    }


def _side_json(side: Side) -> dict[str, Any]:
    found = None if side.leak is None else plain(side.leak.model_dump(exclude={"adaptive"}))
    return {"status": side.status, "reason": side.reason, "leak": found}


def side_text(side: Side | None) -> tuple[str, str]:
    """What stands in a table: exact copies, and the leakage with its interval; or why there is nothing."""
    if side is None:
        return "not measured", ""
    if side.leak is None or side.leak.leakage is None:
        return side.status, ""
    exact = leak_text(side.leak)
    half = ", in part" if side.status == "not measured" else ""
    return exact + half, with_interval(side.leak.leakage)
