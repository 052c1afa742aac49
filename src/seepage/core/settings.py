"""Settings of a registry entry: typed by its signature, checked before it is built."""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from seepage.core.errors import SpecError
from seepage.core.registry import unknown

_LARGEST_FLOAT = 3.4028234663852886e38
"""That of IEEE 754 single precision, (2 - 2^-23) 2^127."""


def construct(factory: Callable[..., Any], options: Mapping[str, Any], what: str) -> Any:
    """Call a registry entry with a user's options; one that it does not know, or of a wrong type, is named.

    >>> construct(lambda *, steps=1: steps, {"steps": 2}, "attack 'mine'")
    2
    """
    valid = inspect.signature(factory).parameters
    for name in options:
        if name not in valid:
            raise SpecError(unknown(f"setting of {what}", name, valid))
    hints = _hints(factory)
    for name, value in options.items():
        if name in hints:
            check_type(value, hints[name], f"{what}: {name}")
    try:
        return factory(**options)
    except (TypeError, ValueError, OverflowError) as error:
        raise SpecError(f"{what} cannot be built with {_shown(dict(options))}: {error}.") from None


def check_type(value: Any, hint: Any, what: str) -> None:
    """Refuse a value that is not what an annotation says. A bool is no number, NaN and infinity are none.

    >>> check_type(3, float, "lr")
    >>> check_type(1.5, int, "seed")
    Traceback (most recent call last):
    ...
    seepage.core.errors.SpecError: seed must be a whole number, not 1.5.
    """
    plain = _plain(value)
    forms = [plain, tuple(plain)] if isinstance(plain, list) else [plain]  # TOML has no tuples
    if not any(_fits(form, hint) for form in forms):
        raise SpecError(f"{what} must be {in_words(hint)}, not {_shown(value)}.")
    if _too_large(plain):
        raise SpecError(f"{what} is {_shown(value)}, which is too large: torch cannot compute with it.")


def _fits(value: Any, hint: Any) -> bool:
    config = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
    try:
        TypeAdapter(hint, config=config).validate_python(value)
    except ValidationError:
        return False
    return True


def _too_large(value: Any) -> bool:
    """Beyond a 64-bit whole number, or a 32-bit float, which most models and updates are made of."""
    if isinstance(value, list | tuple):
        return any(_too_large(one) for one in value)
    if isinstance(value, Mapping):
        return any(_too_large(one) for one in value.values())
    if isinstance(value, float):
        return abs(value) > _LARGEST_FLOAT
    return isinstance(value, int) and not -(2**63) <= value < 2**63


def _plain(value: Any) -> Any:
    """numpy's whole numbers as Python's own."""
    if isinstance(value, list | tuple):
        return type(value)(_plain(one) for one in value) if type(value) in (list, tuple) else value
    is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return int(value) if is_whole else value


def _hints(factory: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a registry entry; none where they cannot be resolved."""
    while isinstance(factory, partial):
        factory = factory.func
    try:
        return get_type_hints(vars(factory)["__init__"] if isinstance(factory, type) else factory)
    except (NameError, TypeError, KeyError):
        return {}


_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    NoneType: "left out",
    Any: "anything",
}
_SEVERAL = {int: "whole numbers", float: "numbers", str: "texts", bool: "true or false"}


def in_words(hint: Any) -> str:
    """An annotation as a user would put it.

    >>> in_words(int | None), in_words(Sequence[float]), in_words(Literal["a", "b"])
    ('a whole number or left out', 'a list of numbers', "'a' or 'b'")
    """
    arguments, origin = get_args(hint), get_origin(hint)
    if origin in (Union, UnionType):
        return " or ".join(in_words(part) for part in arguments)
    if origin is Literal:
        return " or ".join(repr(part) for part in arguments)
    if origin is Annotated:
        return in_words(arguments[0])
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "a table"
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return f"a list of {_SEVERAL.get(arguments[0], in_words(arguments[0]))}"
    return _WORDS.get(hint, f"a {getattr(hint, '__name__', hint)}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def check_budget(budget: float | None) -> None:
    """Raise ValueError for a time in which nothing can be done.

    >>> check_budget(-1.0)
    Traceback (most recent call last):
    ...
    ValueError: budget must be a positive number of seconds, not -1.0.
    """
    if budget is not None and not budget > 0:
        raise ValueError(f"budget must be a positive number of seconds, not {budget}.")
