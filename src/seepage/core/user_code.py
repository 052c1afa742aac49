"""Code and files of somebody else's: what running or reading them may raise, and where code may lie."""

from __future__ import annotations

import importlib
import lzma
import struct
import sys
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
# What a damaged, encrypted or made-up file makes its reader raise: a flipped byte can take one anywhere.
UNREADABLE = (
    *USER_CODE_ERRORS,
    StopIteration,
    lzma.LZMAError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
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
