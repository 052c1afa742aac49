"""A FLARE site's privacy.json as the defenses of an audit: what the site does to every job's updates.

Reading it needs no FLARE: the filters themselves are looked up when the audit runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seepage.core.errors import SpecError
from seepage.core.registry import unknown
from seepage.names.frameworks import NVFLARE

_COUNTERPARTS = frozenset({"HEModelDecryptor", "ModelDequantizer"})
"""Filters that undo at the receiver what another one did at the sender."""


def read_privacy_json(path: Path | str, *, scope: str | None = None) -> list[dict[str, Any]]:
    """The filters of one scope as an audit's `defenses`, the outermost first; by default of the file's
    default scope.

    FLARE runs the first task result filter first, so it is the innermost; task data filters change the
    received model before anything is trained.
    """
    written = _read(Path(path))
    chosen = _scope(written, scope, Path(path).name)
    results = _filters(chosen, "task_result_filters", "out", Path(path).name)
    received = _filters(chosen, "task_data_filters", "in", Path(path).name)
    return [*reversed(results), *({**one, "chain": "task_data"} for one in received)]


def _read(file: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SpecError(f"'{file}' does not exist: give the path of the site's privacy.json.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"'{file}' cannot be read ({error}): give a site's privacy.json.") from None
    except json.JSONDecodeError as error:
        raise SpecError(f"'{file.name}' is not valid JSON: {error}.") from None
    if not isinstance(found, Mapping) or not isinstance(found.get("scopes"), list) or not found["scopes"]:
        raise SpecError(f"'{file.name}' lists no scopes: a FLARE site's privacy.json has a list 'scopes'.")
    return found


def _scope(written: Mapping[str, Any], wanted: str | None, name: str) -> Mapping[str, Any]:
    scopes = {str(one.get("name", "")): one for one in written["scopes"] if isinstance(one, Mapping)}
    chosen = wanted if wanted is not None else written.get("default_scope")
    if chosen is None and len(scopes) == 1:
        return next(iter(scopes.values()))
    if chosen is None:
        raise SpecError(
            f"'{name}' has no default_scope, and jobs choose one of {', '.join(scopes)}: say which with "
            "--privacy-scope."
        )
    if chosen not in scopes:
        raise SpecError(unknown(f"scope of '{name}'", str(chosen), scopes))
    return scopes[chosen]


def _filters(scope: Mapping[str, Any], key: str, direction: str, file: str) -> list[dict[str, Any]]:
    """Those that act at the client: results on their way out, task data on their way in."""
    listed = scope.get(key, [])
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise SpecError(f"'{file}': {key} must be a list of filters.")
    found = []
    for one in listed:
        if not isinstance(one, Mapping) or not isinstance(one.get("args", {}), Mapping):
            raise SpecError(f"'{file}': a filter of {key} must be a table with a path or name, and args.")
        if one.get("disabled") is True or str(one.get("direction") or direction).lower() not in (
            direction,
            "inout",
        ):
            continue
        name = _name(one, key, file)
        if name.rpartition(".")[2].rpartition(":")[2] not in _COUNTERPARTS:
            found.append({"name": name, **one.get("args", {})})
    return found


def _name(one: Mapping[str, Any], key: str, file: str) -> str:
    """FLARE's own filters by their name, which has an answer; others by their path."""
    path, short = str(one.get("path") or ""), str(one.get("name") or "")
    last = path.rpartition(".")[2]
    if path and not (path.startswith("nvflare.") and last in NVFLARE):
        return f"nvflare:{path}"
    if not (path or short):
        raise SpecError(f"'{file}': a filter of {key} has neither a path nor a name.")
    return f"nvflare:{last or short}"
