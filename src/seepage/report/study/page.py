"""The page of a study: recommendation, picture, table, ranking and limits."""

from __future__ import annotations

from pathlib import Path

from seepage.record import write_atomically
from seepage.report.charts.tradeoff import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, build_plot
from seepage.report.frame import render
from seepage.report.study.advice import RULE, advise
from seepage.report.study.result import StudyResult
from seepage.report.study.words import leak_text, metric_text
from seepage.report.words import interval, percent


def study_html(result: StudyResult) -> str:
    """The whole study as one self-contained page; an unfinished one gives a page that says so."""
    header = result.log.header
    return render(
        "study.html.j2",
        header=header,
        first=result.first,
        rows=result.rows,
        advice=advise(result),
        rule=RULE,
        bounded=any(row.bound_seen is not None or row.bound_training is not None for row in result.rows),
        plot=build_plot(result.rows),
        frame={"w": WIDTH, "h": HEIGHT, "left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM},
        percent=percent,
        interval=interval,
        leak_text=leak_text,
        metric_text=metric_text,
        prior_success=float(header.spec["prior_success"]),
        spec=header.spec,
    )


def write_study_html(result: StudyResult, path: Path | None = None) -> Path:
    """Write the page into the study's folder, or to `path`; returns where it is."""
    target = result.log.folder.report_file if path is None else path
    write_atomically(target, study_html(result).encode())
    return target
