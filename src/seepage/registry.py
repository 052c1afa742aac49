"""Look-up in the registries (plain dicts), with an answer that helps when a name is wrong."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from seepage.errors import SpecError

T = TypeVar("T")


def unknown(kind: str, name: str, valid: Iterable[str]) -> str:
    """The sentence for a name that does not exist: the nearest valid one first, then all of them.

    >>> unknown("attack", "analitic_extraction", ["analytic_extraction", "prior_only"])
    "unknown attack 'analitic_extraction': did you mean 'analytic_extraction'? Valid: analytic_extraction, \
prior_only."
    """
    names = sorted(valid)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return f"unknown {kind} '{name}': {hint}Valid: {', '.join(names) or 'none'}."


def lookup(registry: Mapping[str, T], name: str, kind: str) -> T:
    """The entry called `name`, or a SpecError that lists the valid names.

    >>> lookup({"a": 1}, "a", "letter")
    1
    """
    try:
        return registry[name]
    except KeyError:
        raise SpecError(unknown(kind, name, registry)) from None


def construct(factory: Callable[..., Any], options: Mapping[str, Any], what: str) -> Any:
    """Call a registry entry with a user's options; an option it does not know is named."""
    valid = inspect.signature(factory).parameters
    for name in options:
        if name not in valid:
            raise SpecError(unknown(f"setting of {what}", name, valid))
    try:
        return factory(**options)
    except (TypeError, ValueError) as error:
        raise SpecError(f"{what} cannot be built with {dict(options)}: {error}.") from None
