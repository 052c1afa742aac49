"""What a paper says of its figures, and whether ours have it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from seepage.record import Finding

if TYPE_CHECKING:
    from seepage.report.published.result import Row


def findings_in_words(findings: Iterable[Finding], rows: Sequence[Row]) -> tuple[str, ...]:
    """One note on all claims that our means bear out, one on those that they do not, and counts."""
    judged: dict[bool, list[str]] = {True: [], False: []}
    counted: list[str] = []
    for finding in findings:
        for claim, holds in _judged(finding, [row for row in rows if _about(finding, row)]):
            judged[holds].append(claim)
        counted += _counted(finding, rows)
    headed = (("Shows here", judged[True]), ("Does not show here", judged[False]))
    return (*(f"{heading}: {'; '.join(listed)}." for heading, listed in headed if listed), *counted)


def _about(finding: Finding, row: Row) -> bool:
    return (not finding.groups or row.group in finding.groups) and (
        not finding.labels or row.label in finding.labels
    )


def _judged(finding: Finding, rows: Sequence[Row]) -> Iterator[tuple[str, bool]]:
    column = finding.rising or finding.falling
    for group in dict.fromkeys(row.group for row in rows) if column else ():
        means = [r.figures[column].mean for r in rows if r.group == group and column in r.figures]
        if len(means) > 1:
            claim = _said(finding, group, "")
            yield claim, means == sorted(means, reverse=bool(finding.falling))
    for row in rows if finding.more else ():
        other = finding.than
        if finding.more not in row.figures or (isinstance(other, str) and other not in row.figures):
            continue
        limit = row.figures[other].mean if isinstance(other, str) else other
        above = row.figures[finding.more].mean - limit
        yield (
            _said(finding, row.group, row.label),
            above >= finding.by if finding.by else above > 0,
        )


def _said(finding: Finding, group: str, row: str) -> str:
    return finding.claim.replace("{group}", group).replace("{row}", row)


def _counted(finding: Finding, rows: Sequence[Row]) -> list[str]:
    """How many of a group's published values lie between two of our columns, as the paper rounds."""
    published: dict[str, list[bool]] = {}
    for row in rows if finding.within else ():
        paper = row.figures[finding.within].paper if finding.within in row.figures else None
        if paper is not None and all(name in row.figures for name in finding.between):
            low, high = (round(row.figures[name].mean, 3) for name in finding.between)
            published.setdefault(row.group, []).append(low <= paper <= high)
    return [
        f"{group}: {sum(inside)} of {len(inside)} published {finding.within} lie between "
        f"{' and '.join(finding.between)}."
        for group, inside in published.items()
    ]
