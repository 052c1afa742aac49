"""What a tracker is told of an audit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from seepage.record import AuditLog, summarise
from seepage.report import verdict, write_html
from seepage.report.compared.settings import flat
from seepage.report.words import printable

LONGEST = 500
"""Characters of a setting: what every store of MLflow takes."""


@dataclass(frozen=True, kw_only=True)
class Tracked:
    """Figures by name, settings and tags as text."""

    title: str
    figures: dict[str, float]
    """"<attack>/<metric>": the mean; with _low and _high the ends of its 95 % interval, with _guess the
    best guess's. What is no number is left out: a tracker would draw it as one."""
    settings: dict[str, str]
    tags: dict[str, str]
    page: Path | None = None

    @classmethod
    def of(cls, log: AuditLog, *, report: bool = False) -> Tracked:
        summaries = summarise(log)
        ruling = verdict(log, summaries)
        figures: dict[str, float] = {}
        for one in summaries:
            for name, score in one.scores.items():
                own = f"{one.attack.key}/{name}"
                found = {own: score.value, f"{own}_low": score.low, f"{own}_high": score.high}
                if name in one.baseline:
                    found[f"{own}_guess"] = one.baseline[name].value
                figures |= {key: value for key, value in found.items() if math.isfinite(value)}
        settings = {name: printable(value)[:LONGEST] for name, value in flat(log.header.spec).items()}
        return cls(
            title=printable(log.header.title),
            figures=figures,
            settings=settings,
            tags={
                "seepage.outcome": ruling.outcome,
                "seepage.verdict": ruling.badge,
                "seepage.headline": printable(ruling.headline),
                "seepage.run_key": log.header.run_key,
                "seepage.missing_cells": str(log.missing),
            },
            page=write_html(log) if report else None,
        )
