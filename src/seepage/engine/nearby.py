"""A key that is right but in the wrong table of an audit file, or nearly so."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from pydantic import BaseModel

_NEAR = 0.8
"""Of `difflib`: "batchsize" is 0.95 like "batch_size", "epochs" 0.67 like "local_epochs". Tested:
test_only_near_keys_are_named."""


def misplaced(location: Sequence[int | str], kind: type[BaseModel]) -> str:
    """One sentence with the table that the key belongs to; empty where it is not known elsewhere.

    location: of the unknown key, as pydantic tells it. kind: of the whole file.
    """
    tables = {name: _fields(field.annotation) for name, field in kind.model_fields.items()}
    tables = {name: keys for name, keys in tables.items() if keys}
    key, inside = str(location[-1]), str(location[0]) if len(location) > 1 else ""
    own = tables.get(inside, []) if inside else list(kind.model_fields)
    if _nearest(key, own):
        return ""  # a slip of the pen in the right table
    if inside and (near := _nearest(key, list(kind.model_fields))):
        return (
            f"unknown key '{inside}.{key}': '{near}' stands at the top of the file, before the first [table]."
        )
    for table, keys in tables.items():
        if table != inside and (near := _nearest(key, keys)):
            return f"unknown key '{key}': '{near}' belongs to the table [{table}] ({table}.{near} = ...)."
    return ""


def _nearest(key: str, keys: Sequence[str]) -> str:
    found = difflib.get_close_matches(key.lower(), keys, n=1, cutoff=_NEAR)
    return found[0] if found else ""


def _fields(annotation: object) -> list[str]:
    """Of a table with keys of its own; those that take a name with any options have none to be confused."""
    if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return []
    return [] if "options" in annotation.model_fields else list(annotation.model_fields)
