"""Functions and classes as they are in memory, for code that has no file: scripts and notebooks."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from seepage.engine.identity.hashing import digest, is_plain

MAIN = frozenset({"__main__", "__mp_main__"})
"""What a user runs, and what worker processes call it."""
_NOT_CODE = frozenset(
    {"__dict__", "__weakref__", "__module__", "__doc__", "__abstractmethods__", "_abc_impl"}
)


def code_digest(code: CodeType) -> str:
    """Of what the code does, wherever it stands: file name and line numbers do not count.

    >>> code_digest((lambda x: x + 1).__code__) == code_digest((lambda x: x + 1).__code__)
    True
    >>> code_digest((lambda x: x + 1).__code__) == code_digest((lambda x: x + 2).__code__)
    False
    """
    constants = [code_digest(c) if isinstance(c, CodeType) else c for c in code.co_consts]
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    return digest(code.co_code, constants, names, counts)


def all_codes(code: CodeType) -> Iterator[CodeType]:
    """A code object and all that are defined inside of it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from all_codes(constant)


def unwrapped(thing: Any) -> Any:
    """What is inside of partials, bound methods, properties and the like."""
    while True:
        if isinstance(thing, functools.partial | functools.partialmethod):
            thing = thing.func
        elif isinstance(thing, MethodType | staticmethod | classmethod):
            thing = thing.__func__
        elif isinstance(thing, property):
            thing = thing.fget
        elif isinstance(thing, FunctionType) and hasattr(thing, "__wrapped__"):
            return thing
        else:
            return thing


def parts(thing: FunctionType | type) -> tuple[str, list[Any]]:
    """A digest of a function or a class by itself, and the objects and modules that it uses."""
    return _of_class(thing) if isinstance(thing, type) else _of_function(thing)


def _of_function(function: FunctionType) -> tuple[str, list[Any]]:
    used: list[Any] = [getattr(function, "__wrapped__", None)]
    plain: list[Any] = [code_digest(function.__code__)]
    closed = inspect.getclosurevars(function) if function.__closure__ else None
    names = {name for code in all_codes(function.__code__) for name in code.co_names}
    seen = {name: function.__globals__[name] for name in sorted(names) if name in function.__globals__}
    for value in (
        function.__defaults__,
        function.__kwdefaults__,
        dict(closed.nonlocals) if closed else {},
        seen,
    ):
        for name, each in _items(value):
            if is_plain(each):
                plain.append((name, each))
            else:
                used.append(each)
    return digest(plain), used


def _of_class(kind: type) -> tuple[str, list[Any]]:
    plain: list[Any] = []
    used: list[Any] = list(kind.__bases__)
    for name, value in sorted(vars(kind).items()):
        if name in _NOT_CODE:
            continue
        if is_plain(value):
            plain.append((name, value))
        else:
            plain.append((name, type(value).__name__))
            used.append(value)
    return digest(kind.__qualname__, plain), used


def _items(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return sorted(value.items())
    return [(str(i), each) for i, each in enumerate(value or ())]


def changed_in_memory(module: ModuleType, source: CodeType, file: str) -> list[str]:
    """Digests of the functions of a loaded module that its file no longer has.

    A file that was edited after it was imported is not what runs; a function that was replaced neither.
    """
    written = {code_digest(code) for code in all_codes(source)}
    found = {code_digest(code) for code in _loaded_codes(module) if code.co_filename == file}
    return sorted(found - written)


def _loaded_codes(module: ModuleType) -> Iterator[CodeType]:
    for value in vars(module).values():
        if getattr(value, "__module__", None) != module.__name__:
            continue
        members = list(vars(value).values()) if isinstance(value, type) else [value]
        for member in members:
            inner = unwrapped(member)
            if isinstance(inner, FunctionType):
                yield inner.__code__
