"""A process that ends when the one that started it is gone, however that one ended."""

from __future__ import annotations

import os
import threading
import time

_EVERY = 1.0
"""Seconds between two looks."""


def end_with_parent(parent: int) -> None:
    """Watch from now on. A parent that was killed cannot tell its children to stop.

    parent: its process id, as it knows it itself, for it may be gone already.
    """
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_EVERY)
    os._exit(1)
