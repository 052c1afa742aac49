"""Attacks from outside of the package, named "package.module:thing". Built only where no data is held."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from seepage.attacks.base import Attack
from seepage.errors import SpecError
from seepage.registry import construct, lookup, unknown


def build_attack(name: str, settings: Mapping[str, Any]) -> Attack:
    """An attack by its name in the registry, or by where it can be imported from.

    >>> build_attack("analytic_extraction", {}).active
    False
    """
    attack = construct(find_attack(name), settings, f"attack '{name}'")
    if not isinstance(attack, Attack):
        raise SpecError(f"'{name}' makes a {type(attack).__name__}, not an Attack: derive it from seepage's.")
    return attack


def find_attack(name: str) -> Callable[..., Any]:
    """What builds the attack. Importing runs code from outside: only the process of an attack may do it."""
    from seepage.attacks import ATTACKS  # here: the registry imports every attack

    if ":" not in name:
        return lookup(ATTACKS, name, "attack")
    module_name, _, thing = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise SpecError(
            f"attack '{name}' cannot be imported ({error}): install its package, or run from the folder it "
            "lies in."
        ) from None
    found = getattr(module, thing, None)
    if not callable(found):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise SpecError(unknown(f"attack of module '{module_name}'", thing, names))
    return found  # type: ignore[no-any-return]
