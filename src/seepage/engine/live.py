"""While a slow attack runs: its progress for the console, and a strip of what it sees so far in the log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from seepage.core.progress import Progress, current_listener, listening
from seepage.core.types import InputSpec, Modality
from seepage.record import write_atomically
from seepage.record.pictures import to_png

_EVERY = 5.0
"""Seconds between two strips."""
_SHOWN = 16
"""Candidates of a strip: more would not be looked at."""


@contextmanager
def watching(strip: Path | None, spec: InputSpec) -> Iterator[None]:
    """Draw the current candidates to `strip`, which is removed when the attack ends.

    Every step still reaches whoever listens already.
    """
    drawn, outer = time.monotonic(), current_listener()

    def listener(progress: Progress) -> None:
        nonlocal drawn
        if outer is not None:
            outer(progress)
        late = time.monotonic() - drawn > _EVERY
        # A search for something else than pictures has no candidates to show: (restarts, n, C, H, W).
        shows = progress.inputs.ndim == 5 and progress.inputs.numel() > 0
        if strip is not None and spec.modality is Modality.IMAGE and late and shows:
            write_atomically(strip, draw_strip(progress, spec))
            drawn = time.monotonic()

    try:
        with listening(listener):
            yield
    finally:
        if strip is not None:
            strip.unlink(missing_ok=True)


def draw_strip(progress: Progress, spec: InputSpec) -> bytes:
    """The first restart's candidates side by side, as PNG."""
    raw = spec.to_raw(progress.inputs[0, :_SHOWN].detach().cpu())  # (n, C, H, W)
    return to_png(torch.cat(list(raw), dim=-1).numpy(), spec.value_range)
