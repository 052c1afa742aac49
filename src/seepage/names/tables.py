"""The papers' tables: one TOML file each, whose first lines say what it is."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

from seepage.core.registry import Entry

GROUP = "seepage.tables"
"""Entry points under which a package offers more."""
FOLDER = Path(__file__).parents[1] / "tables"


def table_file(name: str) -> Path:
    """Where one of seepage's own tables lies.

    >>> table_file("boenisch2021/table2").name
    'table2.toml'
    """
    return FOLDER / f"{name}.toml"


@cache
def own_tables() -> dict[str, Entry]:
    """Every table that comes with seepage, by paper and name."""
    found = {}
    for file in sorted(FOLDER.glob("*/*.toml")):
        read = tomllib.loads(file.read_text(encoding="utf-8"))
        found[f"{file.parent.name}/{file.stem}"] = Entry(
            where="seepage.tables.definition:read_table",
            description=read["about"],
            facts={"needs": read["needs"]},
        )
    return found


@cache
def _texts() -> dict[str, str]:
    return {name: table_file(name).read_text(encoding="utf-8") for name in own_tables()}


def tables_with(name: str) -> dict[str, str]:
    """The tables whose grid names this attack or defense, with what each is about.

    >>> "boenisch2021/table5" in tables_with("trap_weights")
    True
    """
    found = [table for table, text in _texts().items() if f'"{name}"' in text]
    return {table: own_tables()[table].description for table in found}
