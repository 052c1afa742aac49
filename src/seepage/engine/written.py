"""Settings as a user writes them: their types, how they are read, and what is wrong in one sentence."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from seepage.core.errors import SpecError
from seepage.core.registry import unknown

_LARGEST_COUNT = 10**9
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**32)]
"""What every generator takes, numpy's among them."""
Count = Annotated[int, Field(strict=True, ge=1, le=_LARGEST_COUNT)]
CountFromZero = Annotated[int, Field(strict=True, ge=0, le=_LARGEST_COUNT)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Switch = Annotated[bool, Field(strict=True)]
Table = TypeVar("Table", bound=BaseModel)
_NEAR = 0.8
"""Of `difflib`: "batchsize" is 0.95 like "batch_size", "epochs" 0.67 like "local_epochs". Tested:
test_only_near_keys_are_named."""


class Strict(BaseModel):
    """Keys that are not its own are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


def validated(kind: type[Table], values: Mapping[str, Any], source: str) -> Table:
    """A table of settings as one of these, or a SpecError with the first problem in one sentence."""
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        raise SpecError(f"{source}: {explain(error, kind)}") from None


def read_toml(path: Path | str) -> dict[str, Any]:
    """The tables of a TOML file, not yet checked."""
    file = Path(path)
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SpecError(
            f"'{file}' does not exist: write one with 'seepage init {file.name}', or check the path."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"'{file}' cannot be read ({error}): give a TOML text file.") from None
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"'{file}' is not valid TOML: {error}.") from None


def explain(error: ValidationError, kind: type[BaseModel]) -> str:
    """The first problem, in words; how many others there are."""
    problems = error.errors()
    first = problems[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        text = misplaced(first["loc"], kind) or unknown("key", where, _keys_beside(first["loc"], kind))
    elif first["type"] == "missing":
        needed = "every audit needs a model and data; 'seepage init' writes an example"
        text = f"'{where}' is missing: {needed if where in ('model', 'data') else 'add it'}."
    else:
        got = f", not {first['input']!r}" if not isinstance(first["input"], Mapping) else ""
        text = f"'{where}' is wrong: {first['msg'][:1].lower()}{first['msg'][1:]}{got}."
    more = len(problems) - 1
    return text + (f" ({more} more problem{'s' if more > 1 else ''} after this one.)" if more else "")


def _keys_beside(location: tuple[int | str, ...], kind: type[BaseModel]) -> list[str]:
    """Valid keys of the table in which an unknown key stood."""
    table = kind
    for part in location[:-1]:
        field = table.model_fields.get(str(part))
        named = () if field is None else (field.annotation, *get_args(field.annotation))
        tables = [one for one in named if isinstance(one, type) and issubclass(one, BaseModel)]
        if not tables:
            return list(kind.model_fields)
        table = tables[0]
    return [".".join((*map(str, location[:-1]), key)) for key in table.model_fields]


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
