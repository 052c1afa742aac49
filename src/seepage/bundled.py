"""Commands that take options by the bundle: a dataclass of options stands for all of them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any


def unfolded(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer wants it, with the fields of every bundle in the place of the bundle.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Where:
    ...     host: str = "here"
    ...     port: int = 1
    >>> @unfolded
    ... def call(name: str, *, where: Where, loud: bool = False) -> None:
    ...     print(name, where, loud)
    >>> str(inspect.signature(call))
    "(*, name: str, host: str = 'here', port: int = 1, loud: bool = False) -> None"
    >>> call(name="A", host="there", port=2)
    A Where(host='there', port=2) False
    """
    signature = inspect.signature(command, eval_str=True)
    taken = signature.parameters.values()
    bundles: dict[str, Any] = {one.name: one.annotation for one in taken if is_dataclass(one.annotation)}
    flat: list[inspect.Parameter] = []
    for one in taken:
        kind = bundles.get(one.name)
        flat += [one] if kind is None else inspect.signature(kind, eval_str=True).parameters.values()

    @functools.wraps(command)
    def called(**given: Any) -> None:
        for name, kind in bundles.items():
            own = {field.name for field in fields(kind)} & given.keys()
            given[name] = kind(**{field: given.pop(field) for field in own})
        command(**given)

    options = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in flat]
    called.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in options}
    return called
