"""How far a run has come: bars in a terminal and in a notebook, and lines where there is neither.

All of it goes to stderr, so that what is piped on stays clean.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as TimeLeft

from seepage.report import plan_text

if TYPE_CHECKING:
    from seepage.record import RunHeader

EVERY = 10.0
"""Seconds between two lines of a log file: seldom enough to read, often enough to see that it goes on."""


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


class Lines:
    """One line now and then, for a log file or CI."""

    def __init__(self, say: Callable[[str], object], *, every: float = EVERY) -> None:
        self._say, self._every = say, every
        self._started = time.monotonic()
        self._last = -float("inf")

    def on_cell(self, cell: str, number: int, total: int) -> None:
        """
        >>> lines = Lines(print, every=60.0)
        >>> lines.on_cell("tag, seed 0", 0, 2), lines.on_cell("tag, seed 1", 1, 2), lines.on_cell("", 2, 2)
        0 of 2 cells after 0 s; next: tag, seed 0
        2 of 2 cells after 0 s
        (None, None, None)
        """
        now = time.monotonic()
        if cell and now - self._last < self._every:
            return
        self._last = now
        after = f"{number} of {total} cells after {now - self._started:.0f} s"
        self._say(f"{after}; next: {cell}" if cell else after)


@contextmanager
def watched(console: Console | None = None) -> Iterator[dict[str, Any]]:
    """What `run_grid` calls while the block lasts: the plan, cells, steps of a search, and notes."""
    console = console or Console(
        stderr=not in_notebook(), soft_wrap=True, force_jupyter=in_notebook() or None
    )

    def note(text: str) -> None:
        console.print(f"seepage: {text}", markup=False, highlight=False)

    def on_plan(header: RunHeader) -> None:
        console.print(plan_text(header), markup=False, highlight=False)

    if not (console.is_terminal or console.is_jupyter):
        lines = Lines(partial(console.print, markup=False, highlight=False))
        yield {"on_plan": on_plan, "on_cell": lines.on_cell, "on_note": note}
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeLeft(),
    )
    with Progress(*columns, console=console) as bar:
        cells = bar.add_task("Preparing", total=None)
        search = bar.add_task("", total=None, visible=False)

        def on_cell(cell: str, number: int, total: int) -> None:
            bar.update(cells, description=cell or "Done", completed=number, total=total)
            bar.update(search, visible=False)

        def on_step(step: Any) -> None:
            text = f"  objective {step.objective:.3g}"
            bar.update(search, description=text, completed=step.step, total=step.steps, visible=True)

        yield {"on_plan": on_plan, "on_cell": on_cell, "on_step": on_step, "on_note": note}
