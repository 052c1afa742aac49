"""How a paper's table is laid out: which scores of which cells make which figure, and what to compare with.

It is written into the log of a table, so that the table can be shown from its folder alone. It names scores
and never code: a folder from elsewhere is only ever read.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from seepage.record.refs import Record


class Column(Record):
    """One kind of figure."""

    name: str
    meaning: str
    score: str | tuple[str, ...]
    """Of a cell: a batch's score, a metric's mean over the examples, seconds, rounds or complete; of several
    the first that the cell has. With a * at its end: every score that begins so."""
    attack: int | str = 0
    """Whose cells: by the place in the row's list of attacks, or by name; "training" is one."""
    margin: float | None = None
    """How far from the paper still counts as agreement; None: not judged."""
    unit: str = ""
    """One of `seepage.record.RANGES`: no interval leaves its range."""
    times: float = 1.0
    take: Literal["all", "best"] | float = "all"
    """best: the largest value. A number: that quantile of the means of the scores that begin alike."""

    @property
    def scores(self) -> tuple[str, ...]:
        return (self.score,) if isinstance(self.score, str) else self.score


class Finding(Record):
    """Something that the paper says of its figures, and that ours have or have not.

    `more` is larger than `than` (a column, or a number), by at least `by`: of every row. Or a column is
    `rising` or `falling` down the rows of a group. Or the paper's value of `within` lies between two columns.
    """

    claim: str = ""
    """With {group} and {row} in the place of names."""
    more: str = ""
    than: str | float = 0.0
    by: float = 0.0
    rising: str = ""
    falling: str = ""
    within: str = ""
    between: tuple[str, str] = ("", "")
    groups: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    """Rows that it is about; none: all."""


class LayoutRow(Record):
    """One line of the table; rows of one group (a dataset, mostly) stand under its name."""

    group: str
    label: str
    paper: dict[str, float] = Field(default_factory=dict)
    """By column."""
    points: tuple[str, ...]
    """Keys of the points whose cells it is made of."""


class Layout(Record):
    """All that a table shows beside its figures."""

    columns: tuple[Column, ...]
    rows: tuple[LayoutRow, ...]
    examples: str = "examples"
    """What the data hold, in the plural."""
    notes: tuple[str, ...] = ()
    """What departs from the paper's set-up, and what explains a difference."""
    missing: tuple[str, ...] = ()
    """Parts that cannot be run, each with the reason."""
    findings: tuple[Finding, ...] = ()
    refused: Literal["missing", "guess"] = "missing"
    """What an attack that refuses counts as: nothing, or the baseline's score."""
    pictures: str = ""
    """The score whose best run is shown as a picture; empty: none is."""
