"""Messages between an audit and the process of an attack: a length, then the content, over two pipes.

To the attack go pickles: they come from the user's own process. From it come only trees of plain values and
tensors (JSON and safetensors): what an attack says is never unpickled.
"""

from __future__ import annotations

import contextlib
import os
import pickle
from typing import Any, BinaryIO

from seepage.core.checkpoint import pack, unpack

_LENGTH = 8
_PART = 2**26


class Ended(Exception):  # noqa: N818 - no error by itself: the other side is gone
    """The other process has ended."""


class Channel:
    """One end of a pair of pipes."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        self._in: BinaryIO = os.fdopen(incoming, "rb")
        self._out: BinaryIO = os.fdopen(outgoing, "wb")

    def ask(self, message: Any) -> None:
        """From the audit to the attack."""
        self._send(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))

    def asked(self) -> Any:
        """On the attack's side."""
        return pickle.loads(self._receive())

    def answer(self, message: Any) -> None:
        """From the attack to the audit."""
        self._send(pack(message))

    def answered(self) -> Any:
        """On the audit's side: plain values and tensors, whatever the other side sends."""
        content = self._receive()
        try:
            return unpack(content)
        except ValueError as error:
            raise Ended(f"its answer cannot be read: {error}") from None

    def close(self) -> None:
        for end in (self._out, self._in):
            with contextlib.suppress(OSError):
                end.close()

    def _send(self, content: bytes) -> None:
        try:
            self._out.write(len(content).to_bytes(_LENGTH, "little"))
            self._out.write(content)
            self._out.flush()
        except OSError:
            raise Ended("it no longer listens") from None

    def _receive(self) -> bytes:
        length = int.from_bytes(self._exactly(_LENGTH), "little")
        return self._exactly(length)

    def _exactly(self, length: int) -> bytes:
        """In parts: a length that is a lie must not allocate its bytes."""
        parts = []
        while length:
            part = self._in.read(min(length, _PART))
            if not part:
                raise Ended("it has ended")
            parts.append(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)
