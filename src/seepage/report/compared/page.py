"""The page of a comparison."""

from __future__ import annotations

from pathlib import Path

from seepage.record import write_atomically
from seepage.report.charts.intervals import Figure, IntervalChart, draw_intervals
from seepage.report.compared.result import Comparison, side_text
from seepage.report.compared.sides import Side
from seepage.report.compared.terminal import difference_text
from seepage.report.frame import render
from seepage.report.front import build_front
from seepage.report.words import NOUNS, with_interval

LEVELS = {
    "more": "high",
    "less": "none_shown",
    "no difference shown": "none_shown",
    "not measured": "unknown",
}
"""The frame of the answer, by the first that is given: nothing is green, here neither."""


def comparison_html(found: Comparison) -> str:
    """All runs on one self-contained page."""
    first = found.runs[0].log.header
    words = [change.word for change in found.changes]
    worst = next((word for word in ("more", "not measured", "no difference shown") if word in words), "less")
    fronts = [build_front(run.log, run.summaries, run.verdict) for run in found.runs]
    title = " and ".join(dict.fromkeys(run.log.header.title for run in found.runs))
    return render(
        "compare.html.j2",
        tile=" / ".join(str(n) for n in reversed(first.input.shape[-2:])),
        header={"title": title},
        found=found,
        level=LEVELS[worst],
        word=worst,
        noun=NOUNS[first.input.modality][1],
        sides=list(zip(found.runs, fronts, strict=True)),
        chart=_chart(found),
        lines=[
            (
                line.name,
                [side_text(side) for side in line.sides],
                [difference_text(one) for one in line.differences],
            )
            for line in found.lines
        ],
        reasons=[
            (run.name, name, side.reason)
            for run in found.runs
            for name, side in run.sides.items()
            if side.reason and side.status == "not measured"
        ],
        spec={run.name: run.log.header.spec for run in found.runs},
    )


def _chart(found: Comparison) -> IntervalChart | None:
    rows = [(line.name, [_figure(side) for side in line.sides]) for line in found.lines]
    names = [run.name for run in found.runs]
    return draw_intervals(rows, names, percent=True, what="Leakage by attack and run", reach=(0.0, 1.0))


def _figure(side: Side | None) -> Figure | None:
    if side is None or side.leak is None or side.leak.leakage is None:
        return None
    one = side.leak.leakage
    return Figure(value=one.value, low=one.low, high=one.high, title=f"{side.title}: {with_interval(one)}")


def write_comparison_html(found: Comparison, path: Path) -> Path:
    write_atomically(path, comparison_html(found).encode())
    return path
