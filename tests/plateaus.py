"""Trying a constant a few times as small and as large: where the results stay, it lies on a plateau."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any


@contextmanager
def scaled(where: str, factor: float) -> Iterator[None]:
    """A constant ("package.module:NAME") times a factor, in every module that took it over by its name."""
    module, name = where.split(":")
    value = getattr(import_module(module), name)
    holders = [m for m in list(sys.modules.values()) if _holds(m, name, value)]
    for holder in holders:
        setattr(holder, name, _times(value, factor))
    try:
        yield
    finally:
        for holder in holders:
            setattr(holder, name, value)


def _holds(module: Any, name: str, value: Any) -> bool:
    return getattr(module, "__name__", "").startswith("seepage.") and vars(module).get(name) is value


def _times(value: Any, factor: float) -> Any:
    if isinstance(value, dict):
        return {key: _times(v, factor) for key, v in value.items()}
    if isinstance(value, tuple):
        return tuple(_times(v, factor) for v in value)
    return max(1, round(value * factor)) if isinstance(value, int) else value * factor
