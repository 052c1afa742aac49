"""From a table as data to the grid that the engine runs: a point for every row whose data are there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from seepage.core.errors import DataError, ModelError
from seepage.data import load_data
from seepage.engine.grid import Grid, Point, TrainingSpec
from seepage.engine.spec import AuditSpec, DataSpec, parse_spec
from seepage.engine.written import validated
from seepage.models.weights import PRETRAINED, pretrained_path
from seepage.record import BASELINE, Layout, LayoutRow
from seepage.tables.definition import GroupDefinition, RowDefinition, TableDefinition, merge, rows_of

ALWAYS: Mapping[str, Any] = {"seeding": "published", "public_examples": 0, "adaptive": False}
"""Others can draw the same batches from the seeds; there is nothing public, so that the guess is flat."""


def table_grid(
    table: TableDefinition,
    *,
    name: str = "",
    seeds: Sequence[int] | None = None,
    budget: float | None = None,
    device: str = "auto",
) -> Grid:
    """The grid, with its layout in what was asked. DataError where the data of no group are there."""
    seeds = tuple(range(table.seeds)) if seeds is None else tuple(seeds)
    points: list[Point] = []
    rows: list[LayoutRow] = []
    present, baseline = _Present(), _needs_baseline(table)
    for group in table.groups:
        papers = group.paper or [()] * len(rows_of(table, group))
        for row, paper in zip(rows_of(table, group), papers, strict=True):
            values = _values(table, group, row)
            training = _training(values.pop("training", None), table)
            data = present.data(group, values)
            if data is None or not present.weights(group, row, values):
                continue
            settled = {**values, "data": data, "device": device, "model": _fed(values.get("model"), data)}
            mine = [
                Point(
                    key=_key(len(points) + i, group, row),
                    title=f"{group.title}, {row.label}",
                    spec=spec,
                    baseline=baseline,
                    training=training,
                )
                for i, spec in enumerate(_specs(table, row, settled, seeds))
            ]
            points += mine
            published = dict(zip(table.published, row.paper or paper, strict=False))
            keys = tuple(point.key for point in mine)
            rows.append(LayoutRow(group=group.title, label=row.label, paper=published, points=keys))
    if not points:
        raise DataError(f"none of the table's datasets was found. {present.missing[0]}")
    shown = {key: getattr(table, key) for key in Layout.model_fields if key in TableDefinition.model_fields}
    layout = Layout(**{**shown, "rows": rows, "missing": (*present.missing, *table.missing)})
    asked = {"table": name, "seeds": list(seeds), "layout": layout.model_dump(mode="json")}
    return Grid(kind="table", title=table.title, points=tuple(points), asked=asked, budget=budget)


def _needs_baseline(table: TableDefinition) -> bool:
    """Whether the table shows, or falls back on, the guess without any update."""
    return table.refused == "guess" or any(column.attack == BASELINE for column in table.columns)


def _values(table: TableDefinition, group: GroupDefinition, row: RowDefinition) -> dict[str, Any]:
    """All that the file says of one row's audit."""
    values = merge(merge(ALWAYS, table.audit), group.audit)
    return merge(values if group.data is None else {**values, "data": group.data}, row.audit)


def _training(wanted: Any, table: TableDefinition) -> TrainingSpec | None:
    """What a row trains for its accuracy, as a study's points do; None: nothing."""
    if wanted is None:
        return None
    return validated(TrainingSpec, wanted, f"table '{table.title}', training")


def _fed(model: Any, data: dict[str, Any]) -> Any:
    """A model that is trained first names the data of its row so: data = "@data"."""
    same = isinstance(model, Mapping) and model.get("data") == "@data"
    return {**model, "data": data} if same else model


def _specs(
    table: TableDefinition, row: RowDefinition, values: dict[str, Any], seeds: Sequence[int]
) -> Iterator[AuditSpec]:
    """One, or one for each seed where settings of the attacks follow it."""
    mine = [seed + row.first_seed for seed in seeds[: row.most_seeds]]
    if row.users:
        values, mine = merge(values, {"protocol": {"clients": len(seeds)}}), [0]
    for several in [[seed] for seed in mine] if row.by_seed else [mine]:
        follow = {key: several[0] % number for key, number in row.by_seed.items()}
        settled = merge(values, {"attacks": follow}) if follow else values
        yield parse_spec({**settled, "seeds": several}, source=f"table '{table.title}', row '{row.label}'")


def _key(number: int, group: GroupDefinition, row: RowDefinition) -> str:
    words = "-".join(re.findall(r"[a-z0-9.]+", f"{group.title} {row.label}".lower()))
    return f"{number + 1:03}-{words[:60]}"


class _Present:
    """What of a table's data and weights is there, each looked for once."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, Any] | None] = {}
        self.missing: list[str] = []

    def data(self, group: GroupDefinition, values: Mapping[str, Any]) -> dict[str, Any] | None:
        """The first of the alternatives that can be loaded."""
        listed = values.get("data", "")
        several = [listed] if isinstance(listed, str | Mapping) else list(listed)
        key = json.dumps(several, sort_keys=True)
        if key not in self._found:
            self._found[key] = None
            reason = ""
            for one in several:
                options = {"name": one} if isinstance(one, str) else dict(one)
                wanted = DataSpec.model_validate(options)
                try:
                    load_data(wanted.name, **wanted.options)
                except DataError as error:
                    reason = str(error)
                else:
                    self._found[key] = options
                    break
            if self._found[key] is None:
                self._say(f"{group.title}: data not found: {reason}")
        return self._found[key]

    def weights(self, group: GroupDefinition, row: RowDefinition, values: Mapping[str, Any]) -> bool:
        """Trained weights are no part of seepage."""
        model = values.get("model", {})
        if not isinstance(model, Mapping) or model.get("weights") != PRETRAINED:
            return True
        try:
            pretrained_path(model["name"])
        except ModelError as error:
            self._say(f"{group.title}, {row.label}: {error}")
            return False
        return True

    def _say(self, sentence: str) -> None:
        if sentence not in self.missing:
            self.missing.append(sentence)
