"""The first screen: what came out, large, for whom it is bad, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from seepage.names.metrics import leading
from seepage.record import BASELINE, AttackSummary, AuditLog, Cell, Example
from seepage.record.packed import where
from seepage.report.actions import Actions, read_actions
from seepage.report.gallery import Gallery, Item, build_gallery, most_leaked_first
from seepage.report.judgement import AuditVerdict, strongest
from seepage.report.whom import whom

LARGE = 3
"""Examples on the first screen."""
_LONGEST = 320
"""Pixels of a large picture's longer side."""


@dataclass(frozen=True, kw_only=True)
class Front:
    """The first screen of a report, besides the verdict itself."""

    gallery: Gallery | None
    """At most `LARGE` examples."""
    attack: str
    whom: tuple[str, ...]
    actions: Actions | None
    advisable: bool
    """A leak was shown, so that a reader wants to know what to do."""


def build_front(log: AuditLog, summaries: Sequence[AttackSummary], ruling: AuditVerdict) -> Front:
    """From the strongest attack in input space; where nothing was shown, from the one that came nearest."""
    leaking = strongest(log, summaries)
    shown = ruling.outcome == "leak_shown"
    candidates = leaking if shown else [s for s in summaries if s.attack.name != BASELINE and s.cells]
    rebuilt = next((s for s in candidates if s.space == "input" and s.examples), None)
    return Front(
        gallery=None if rebuilt is None else _large(log, rebuilt),
        attack="" if rebuilt is None else rebuilt.attack.title,
        whom=whom(log, leaking[0]) if shown and leaking else (),
        actions=read_actions(log) if shown else None,
        advisable=shown,
    )


def _large(log: AuditLog, summary: AttackSummary) -> Gallery | None:
    """The most leaked of each run in turn, of different classes where there is a choice."""
    cells = where(log.cells_of(summary.attack, done=True), lambda c: c.examples != ())
    if not cells:
        return None
    each = -(-LARGE // len(cells[:LARGE]))
    parts = [
        build_gallery(log, cell, keep=_varied(log, cell, each), longest=_LONGEST) for cell in cells[:LARGE]
    ]
    items: list[Item] = [item for part in parts for item in part.items]
    return replace(parts[0], items=tuple(items[:LARGE]), more="")


def _varied(log: AuditLog, cell: Cell, count: int) -> list[int]:
    """Rows of examples that came out as well as any, those first that nobody could have guessed, and no class
    twice before every class had its turn."""
    order = most_leaked_first(log, cell)
    best, what = order[0].scores.get("exact"), leading(order[0].scores, log.header.input.modality)

    def surprise(example: Example) -> float:
        if what.name not in example.scores or what.name not in example.baseline:
            return 0.0
        return what.gain(example.scores[what.name], example.baseline[what.name])

    alike = sorted((e for e in order if e.scores.get("exact") == best), key=surprise, reverse=True)
    first = list({example.label: example.index for example in reversed(alike)}.values())[::-1]
    return list(dict.fromkeys([*first, *(e.index for e in alike), *(e.index for e in order)]))[:count]
