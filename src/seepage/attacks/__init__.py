"""Attacks, one file each. ATTACKS maps a name to the function that builds it with its defaults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from seepage.attacks.base import Attack, PerUpdateAttack
from seepage.core.errors import SpecError
from seepage.core.registry import Entry, Registry
from seepage.names import attacks as names

__all__ = ["ATTACKS", "Attack", "PerUpdateAttack"]


def _builder(name: str, entry: Entry, thing: Any) -> Callable[..., Attack]:
    if isinstance(thing, Attack):  # the object itself: it is built already
        return lambda: thing
    if not callable(thing):
        raise SpecError(
            f"attack '{name}' is a {type(thing).__name__}: name a class, or a function that builds it."
        )
    return thing  # type: ignore[no-any-return]


ATTACKS: Registry[Callable[..., Attack]] = Registry(
    "attack", group=names.GROUP, entries=names.ATTACKS, make=_builder
)
