"""A paper's table as data: what a TOML file says of it. Typos are refused, not ignored."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

from seepage.core.errors import SpecError
from seepage.core.registry import Entry, Registry, unknown
from seepage.engine.written import Count, CountFromZero, Switch, read_toml, validated
from seepage.names import tables as names
from seepage.record import Column, Finding


class _Part(BaseModel):
    """Keys that are not its own are those of an audit file: they hold for the points of this part."""

    model_config = ConfigDict(extra="allow", frozen=True, protected_namespaces=())

    @property
    def audit(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class RowDefinition(_Part):
    """One line of the table: a point of the grid, or one for each seed."""

    label: str
    paper: tuple[float, ...] = ()
    """In the order of the table's `published`."""
    most_seeds: Count | None = None
    """Not more than so many, for a row that takes long."""
    first_seed: CountFromZero = 0
    """Added to every seed: the row has draws of its own."""
    users: Switch = False
    """The seeds are users of one run: as many clients as there are seeds, all in one cell."""
    by_seed: dict[str, Count] = {}
    """Settings of the attacks that are the seed modulo a number."""


class _Lines(_Part):
    """Where rows are listed: one by one, or as all combinations of some settings."""

    rows: tuple[RowDefinition, ...] = ()
    vary: dict[str, tuple[Any, ...]] = {}
    """"part.setting" to its values; the last varies fastest."""
    label: str = ""
    """Of such rows: {} stands for the values, in their order."""


class GroupDefinition(_Lines):
    """Rows under one heading, mostly of one dataset. Without rows of its own it has the table's."""

    title: str
    data: dict[str, Any] | tuple[dict[str, Any], ...] | str | None = None
    """Of several the first that can be loaded."""
    paper: tuple[tuple[float, ...], ...] = ()
    """Of its rows, in their order."""


class TableDefinition(_Lines):
    """The whole file. Its other keys are an audit's and hold for every point."""

    title: str
    about: str
    """One line for the list of tables."""
    needs: str
    """What must be there before it can be run."""
    seeds: Count = 10
    columns: tuple[Column, ...]
    published: tuple[str, ...] = ()
    """Columns whose published figures `paper` lists."""
    groups: tuple[GroupDefinition, ...]
    examples: str = "pictures"
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    refused: Literal["missing", "guess"] = "missing"
    pictures: str = ""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        columns = [column.name for column in self.columns]
        if unknown := [name for name in self.published if name not in columns]:
            raise ValueError(f"'{unknown[0]}' is published but no column: columns are {', '.join(columns)}")
        for group in self.groups:
            if not (group.rows or group.vary or self.rows or self.vary):
                raise ValueError(f"group '{group.title}' has no rows: list them, or say what varies")
            if group.paper and len(group.paper) != len(rows_of(self, group)):
                found = f"{len(group.paper)} lines for {len(rows_of(self, group))} rows"
                raise ValueError(f"group '{group.title}' has published figures for other rows: {found}")
        return self


def rows_of(table: TableDefinition, group: GroupDefinition) -> tuple[RowDefinition, ...]:
    """The group's rows, or the table's."""
    lines: _Lines = group if group.rows or group.vary else table
    return lines.rows or tuple(_combined(lines))


def _combined(lines: _Lines) -> list[RowDefinition]:
    found: list[tuple[list[Any], dict[str, Any]]] = [([], {})]
    for path, values in lines.vary.items():
        found = [([*said, v], merge(keys, nested(path, v))) for said, keys in found for v in values]
    return [RowDefinition(label=lines.label.format(*said), **keys) for said, keys in found]


def nested(path: str, value: Any) -> dict[str, Any]:
    """
    >>> nested("model.width", 200)
    {'model': {'width': 200}}
    """
    first, _, rest = path.partition(".")
    return {first: nested(rest, value) if rest else value}


def merge(general: Mapping[str, Any], special: Mapping[str, Any]) -> dict[str, Any]:
    """Tables are merged, other values replaced; settings of `attacks` reach every attack of the list, and
    another name brings no settings along.

    >>> merge({"model": {"name": "mlp", "width": 1}, "seeds": 2}, {"model": {"width": 3}})
    {'model': {'name': 'mlp', 'width': 3}, 'seeds': 2}
    >>> merge({"attacks": [{"name": "a"}, {"name": "b"}]}, {"attacks": {"scale": 1}})
    {'attacks': [{'name': 'a', 'scale': 1}, {'name': 'b', 'scale': 1}]}
    """
    merged = dict(general)
    for key, value in special.items():
        old = merged.get(key)
        if isinstance(value, Mapping) and isinstance(old, list | tuple):
            merged[key] = [merge({"name": one} if isinstance(one, str) else one, value) for one in old]
        elif isinstance(value, Mapping) and isinstance(old, Mapping):
            other = value.get("name", old.get("name")) != old.get("name")
            merged[key] = dict(value) if other else merge(old, value)
        else:
            merged[key] = value
    return merged


def parse_table(values: Mapping[str, Any], *, source: str = "the table") -> TableDefinition:
    """Validate a table given as a dict; what is wrong with it is one sentence."""
    filled = {key: _filled(values, key) for key in _SHARED if key in values}
    return validated(TableDefinition, {**values, **filled}, source)


_SHARED = ("notes", "columns")


def _filled(values: Mapping[str, Any], key: str) -> Any:
    """What several tables have in common stands in one file, and "@name" in theirs."""
    shared, listed = _shared()[key], values[key]
    if not isinstance(listed, list | tuple):
        return listed
    names = [one[1:] for one in listed if isinstance(one, str) and one.startswith("@")]
    if absent := [name for name in names if name not in shared]:
        raise SpecError(unknown(f"shared entry of {key}", absent[0], shared))
    return [shared[one[1:]] if isinstance(one, str) and one.startswith("@") else one for one in listed]


@cache
def _shared() -> dict[str, dict[str, Any]]:
    return read_toml(names.FOLDER / "shared.toml")


def read_table(path: Path | str) -> TableDefinition:
    """One TOML file."""
    return parse_table(read_toml(path), source=f"'{Path(path).name}'")


def find_table(name: str) -> TableDefinition:
    """By a name of seepage's or of an installed package, "package.module:thing", or the path of a TOML file.

    >>> find_table("boenisch2021/table7")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    seepage.core.errors.SpecError: unknown table 'boenisch2021/table7': did you mean ...
    """
    return read_table(name) if name.endswith(".toml") else TABLES.find(name)


def _defined(name: str, entry: Entry, thing: Any) -> TableDefinition:
    if not entry.outside:
        return read_table(names.table_file(name))
    given = thing() if callable(thing) else thing
    if isinstance(given, TableDefinition):
        return given
    if isinstance(given, Mapping):
        return parse_table(given, source=f"table '{name}'")
    if isinstance(given, str | Path):
        return read_table(given)
    raise SpecError(
        f"table '{name}' is a {type(given).__name__}: offer the path of a TOML file, a dict like one, or a "
        "function that returns either."
    )


TABLES: Registry[TableDefinition] = Registry(
    "table", group=names.GROUP, entries=names.own_tables(), make=_defined
)
