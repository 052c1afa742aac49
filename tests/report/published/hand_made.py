"""A table and a log that were never run."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from seepage.record import AttackRef, Cell, Column, Layout, LayoutRow
from seepage.report.published.result import Figure, Row, Table


def fake_log(columns: Sequence[Column], cells: Sequence[Cell]) -> Any:
    """Of one row, which is one point with these cells."""
    row = LayoutRow(group="g", label="r", points=("p",))
    layout = Layout(columns=tuple(columns), rows=(row,)).model_dump(mode="json")
    header = SimpleNamespace(
        key="p", title="g, r", attacks=(AttackRef(name="a"),), data_name="d", data_source="s", data_examples=2
    )

    def cells_where(predicate: Any) -> list[Cell]:
        return [cell for cell in cells if predicate(cell)]

    point = SimpleNamespace(header=header, cells=tuple(cells), trainings=(), cells_where=cells_where)
    return SimpleNamespace(
        header=SimpleNamespace(
            title="Some table", spec={"table": "some/table", "layout": layout}, points=(header,)
        ),
        folder=SimpleNamespace(path="run"),
        points=(point,),
        not_run=lambda: (),
    )


def hand_made() -> Table:
    near = Figure(values=(0.21, 0.24, 0.27), paper=0.229)
    far = Figure(values=(0.12, 0.14, 0.16), paper=0.229)
    own = Figure(values=(0.905,))
    columns = (
        Column(name="R", meaning="recall", score="r", margin=0.05, unit="share"),
        Column(name="A", meaning="active rows", score="a", margin=0.02, unit="share"),
    )
    return Table(
        log=fake_log(columns, ()),
        columns=columns,
        rows=(Row("CIFAR10", "Xavier", {"R": near, "A": own}), Row("CIFAR10", "Gaussian", {"R": far})),
        notes=("The pictures were smaller.",),
        missing=("ImageNet: data not found.",),
    )
