"""A checksum in front of a record: a flipped bit is noticed, wherever it is. It is no signature."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

_SEAL = re.compile(rb'\A\{"checksum":"([0-9a-f]{64})",')


def seal(record: bytes) -> bytes:
    """A JSON object with the SHA-256 of its own text as its first entry.

    >>> unseal(seal(b'{"a": 1}'))
    b'{"a": 1}'
    """
    return b'{"checksum":"%s",' % hashlib.sha256(record).hexdigest().encode() + memoryview(record)[1:]


def unseal(content: bytes) -> bytes:
    """The object as it was sealed, or ValueError.

    >>> unseal(seal(b'{"a": 1}').replace(b"1}", b"2}"))
    Traceback (most recent call last):
    ...
    ValueError: its checksum does not fit, so it was damaged or edited
    """
    found = _SEAL.match(content)
    if found is None:
        raise ValueError("it has no checksum")
    record = b"{" + memoryview(content)[found.end() :]
    if hashlib.sha256(record).hexdigest().encode() != found[1]:
        raise ValueError("its checksum does not fit, so it was damaged or edited")
    return record


def file_checksum(path: Path) -> str | None:
    """SHA-256 of a file; None where there is none."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None
