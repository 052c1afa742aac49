"""From the cells of a run to the rows of a table, each figure beside the paper's with their difference."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import ValidationError

from seepage.core.errors import LogError
from seepage.record import (
    BASELINE,
    TRAINING,
    AuditLog,
    Cell,
    Column,
    Estimate,
    Layout,
    LayoutRow,
    RunLog,
    plain,
)
from seepage.report.published.findings import findings_in_words
from seepage.report.words import sentence


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One number over several seeds, and what the paper has in its place."""

    values: tuple[float, ...]
    """One for each seed."""
    paper: float | None = None

    @property
    def mean(self) -> float:
        """
        >>> Figure(values=(0.1, 0.3), paper=0.25).mean
        0.2
        """
        return statistics.fmean(self.values)

    @property
    def n(self) -> int:
        return len(self.values)

    def estimate(self, unit: str = "") -> Estimate:
        """The mean with its 95 % interval; every seed has a model and a batch of its own.

        >>> found = Figure(values=(0.1, 0.3, 0.2)).estimate("share")
        >>> round(found.low, 3), round(found.high, 3)
        (0.0, 0.448)
        """
        return Estimate.of([[value] for value in self.values], unit)

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.paper is None else self.mean - self.paper

    def outside(self, margin: float | None) -> bool:
        """Further from the paper than `margin` allows. False where there is nothing to compare with.

        >>> Figure(values=(0.30,), paper=0.25).outside(0.05), Figure(values=(0.31,), paper=0.25).outside(0.05)
        (False, True)
        """
        if self.difference is None or margin is None:
            return False
        # 0.30 - 0.25 is a little more than 0.05 in binary: a rounding error is no departure
        return abs(self.difference) > margin and not math.isclose(abs(self.difference), margin)


@dataclass(frozen=True)
class Row:
    """One line of the table; a figure that was not measured is not in it."""

    group: str
    label: str
    figures: Mapping[str, Figure]
    picture: bytes | None = None
    """PNG of the best run, originals above what came out."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """What `seepage reproduce` shows."""

    log: RunLog
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """Parts that were not run, each with the reason."""

    @classmethod
    def of(cls, log: RunLog) -> Table:
        """The table of a run's folder, finished or not."""
        layout = _layout(log)
        points = {point.header.key: point for point in log.points}
        rows = tuple(_row(row, layout, points) for row in layout.rows)
        return cls(
            log=log,
            columns=layout.columns,
            rows=rows,
            notes=(*findings_in_words(layout.findings, rows), *_sources(log, layout), *layout.notes),
            missing=(*layout.missing, *log.not_run(), *_failed(log)),
        )

    def __repr__(self) -> str:
        return f"<table '{self.title}': {len(self.rows)} rows, in {self.log.folder.path}>"

    @property
    def title(self) -> str:
        return self.log.header.title

    def outside(self) -> list[tuple[Row, Column]]:
        """Every figure beyond its margin."""
        return [
            (row, column)
            for row in self.rows
            for column in self.columns
            if column.name in row.figures and row.figures[column.name].outside(column.margin)
        ]

    def compared(self, column: Column) -> bool:
        """Whether the paper has any figure in this column."""
        return any(r.figures[column.name].paper is not None for r in self.rows if column.name in r.figures)

    def not_measured(self) -> tuple[str, ...]:
        """What was planned and has no result; all that is missing where there is no figure at all."""
        figures = (figure for row in self.rows for figure in row.figures.values())
        if not any(math.isfinite(figure.mean) for figure in figures):
            return self.missing or (f"{self.title}: there is no figure of ours.",)
        return (*self.log.not_run(), *_failed(self.log))

    def to_json(self) -> dict[str, Any]:
        """For --json: plain numbers, lists and strings."""
        return {
            "name": self.log.header.spec.get("table", ""),
            "title": self.title,
            "columns": [{"name": c.name, "meaning": c.meaning, "margin": c.margin} for c in self.columns],
            "rows": [
                {
                    "group": row.group,
                    "label": row.label,
                    "figures": {
                        c.name: _figure_json(row.figures[c.name], c)
                        for c in self.columns
                        if c.name in row.figures
                    },
                }
                for row in self.rows
            ],
            "notes": list(self.notes),
            "missing": list(self.missing),
        }


def _layout(log: RunLog) -> Layout:
    try:
        layout = Layout.model_validate(log.header.spec.get("layout"))
    except ValidationError as error:
        raise LogError(
            f"'{log.folder.path}' does not say how its table is laid out ({error.errors()[0]['msg']}): run "
            "the same command again with --fresh."
        ) from None
    there = {point.header.key for point in log.points}
    for row in layout.rows:
        if unknown := [key for key in row.points if key not in there]:
            raise LogError(
                f"the table's row '{row.label}' names a point that is not there: {unknown[0][:80]}."
            )
    return layout


def _row(row: LayoutRow, layout: Layout, points: Mapping[str, AuditLog]) -> Row:
    mine = [points[key] for key in row.points]
    found = {column.name: _values(column, layout, mine) for column in layout.columns}
    figures = {
        name: Figure(values=tuple(values), paper=row.paper.get(name))
        for name, values in found.items()
        if values
    }
    return Row(row.group, row.label, figures, _picture(layout.pictures, mine))


def _values(column: Column, layout: Layout, points: Sequence[AuditLog]) -> list[float]:
    """One for each seed, or for each score that begins alike."""
    found: dict[str, list[float]] = {}
    for point in points:
        cells = _cells_of(point, column.attack)
        guesses = {cell.seed: cell for cell in _cells_of(point, BASELINE)}
        for cell in cells:
            refused = cell.status == "not_applicable" and layout.refused == "guess"
            counted = guesses.get(cell.seed, cell) if refused else cell
            if counted.status == "done":
                for name, value in _chosen(column, scores_of(counted)):
                    found.setdefault(name, []).append(column.times * value)
    values = [value for each in found.values() for value in each]
    if not values or column.take == "all":
        return values
    if column.take == "best":
        return [max(values)]
    return [float(np.quantile([statistics.fmean(each) for each in found.values()], column.take))]


def _cells_of(point: AuditLog, attack: int | str) -> list[Cell]:
    """By seed; of an attack that the point does not have: none."""
    if attack == TRAINING:
        return sorted(point.trainings, key=lambda cell: cell.seed)
    if isinstance(attack, int):
        others = [ref for ref in point.header.attacks if ref.name != BASELINE] or list(point.header.attacks)
        keys = {ref.key for ref in others[attack : attack + 1]}
    else:
        keys = {ref.key for ref in point.header.attacks if ref.name == attack}
    return sorted(point.cells_where(lambda cell: cell.attack.key in keys), key=lambda cell: cell.seed)


def _chosen(column: Column, scores: Mapping[str, float]) -> Iterable[tuple[str, float]]:
    for wanted in column.scores:
        if wanted.endswith("*"):
            some = [(name, value) for name, value in scores.items() if name.startswith(wanted[:-1])]
        else:
            some = [(wanted, scores[wanted])] if wanted in scores else []
        if some:
            return some
    return []


def scores_of(cell: Cell) -> dict[str, float]:
    """Every number that a finished cell has: of the batch, means over its examples, and what it took."""
    names = cell.examples[0].scores if cell.examples else {}
    means = {name: statistics.fmean(one.scores[name] for one in cell.examples) for name in names}
    cost = {} if cell.cost is None else {"seconds": cell.cost.seconds, "rounds": float(cell.cost.rounds)}
    return {**means, **cost, "complete": float(cell.complete is True), **cell.batch_scores}


def _picture(score: str, points: Sequence[AuditLog]) -> bytes | None:
    """Of the run with the highest score, the first of equals."""
    if not score:
        return None
    done = [(p, cell) for p in points for cell in _cells_of(p, 0) if "picture" in cell.files]
    best = max(done, key=lambda one: scores_of(one[1]).get(score, -math.inf), default=None)
    return None if best is None else best[0].folder.picture_file(best[1].id).read_bytes()


def _sources(log: RunLog, layout: Layout) -> list[str]:
    """Where the data came from and how much there is, once each."""
    headers = [point.header for point in log.points]
    said = (f"{h.data_name}: {h.data_source}, {h.data_examples} {layout.examples}." for h in headers)
    return list(dict.fromkeys(said))


def _failed(log: RunLog) -> tuple[str, ...]:
    return tuple(
        f"{point.header.title}: {cell.attack.title}, seed {cell.seed}: {sentence(cell.reason)}"
        for point in log.points
        for cells in (point.cells, point.trainings)
        for cell in cells
        if cell.status == "failed"
    )


def _figure_json(figure: Figure, column: Column) -> dict[str, Any]:
    return {
        **plain(figure.estimate(column.unit)),
        "values": plain(figure.values),
        "paper": figure.paper,
        "difference": plain(figure.difference),
        "outside_margin": figure.outside(column.margin),
    }
