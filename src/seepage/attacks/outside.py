"""Building an attack by its name. One from outside of the package is built only where no data is held."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seepage.attacks import ATTACKS, Attack
from seepage.core.errors import SpecError
from seepage.core.registry import import_thing
from seepage.core.settings import construct


def build_attack(name: str, settings: Mapping[str, Any], *, where: str = "", package: str = "") -> Attack:
    """An attack by its name, or by where it can be imported from.

    where, package: of a name that an installed package offers, for the process of an attack cannot read the
    records of packages.

    >>> build_attack("analytic_extraction", {}).active
    False
    """
    named = f"attack '{name}'"
    factory = import_thing(where, named=named, package=package) if where else ATTACKS.find(name)
    attack = construct(factory, settings, named)
    if not isinstance(attack, Attack):
        raise SpecError(f"'{name}' makes a {type(attack).__name__}, not an Attack: derive it from seepage's.")
    return attack
