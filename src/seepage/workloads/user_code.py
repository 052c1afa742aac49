"""Calling what a user names as "package.module:function", for data and models alike."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from seepage.errors import SeepageError
from seepage.registry import unknown

# What somebody else's code raises when it cannot cope. Our own errors are none of these and pass through.
USER_CODE_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    BufferError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    NameError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)


def reason(error: BaseException) -> str:
    """What an error says, on one line and without a path of this machine.

    >>> reason(ValueError("first\\nsecond")), reason(FileNotFoundError(2, "No such file", "where/x.npz"))
    ('first', 'No such file')
    """
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text.splitlines()[0].rstrip(". ") if text.strip() else type(error).__name__


@contextmanager
def current_folder_importable() -> Iterator[None]:
    """A user's own module usually lies where the command is run."""
    folder = str(Path.cwd())
    importlib.invalidate_caches()  # the file may have been written a moment ago
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def import_function(reference: str, error: type[SeepageError]) -> Callable[..., Any]:
    """The function that "package.module:function" names, or `error` in one sentence."""
    module_name, _, function_name = reference.partition(":")
    if not module_name or not function_name:
        raise error(f"'{reference}' names no function; write it as \"package.module:function\".")
    try:
        module = importlib.import_module(module_name)
    except USER_CODE_ERRORS as cause:
        raise error(
            f"'{module_name}' cannot be imported ({type(cause).__name__}: {reason(cause)}); "
            "install it, or run from the folder it lies in."
        ) from cause
    function = getattr(module, function_name, None)
    if not callable(function):
        names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise error(unknown(f"function of module '{module_name}'", function_name, names))
    return function  # type: ignore[no-any-return]
