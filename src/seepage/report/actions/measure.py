"""Measuring what could be changed, after an audit that has shown a leak and inside its budget."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from seepage.core.errors import SeepageError
from seepage.engine.executors.pays import WORKER_START
from seepage.engine.grid import Grid
from seepage.engine.remedies import SHARE, advice_grid
from seepage.engine.run import run_grid
from seepage.engine.spec import AUTO, DEFAULT_BUDGET
from seepage.record import AuditLog, RunLog, origin_key, summarise
from seepage.report.actions.listing import ADVICE
from seepage.report.judgement import strongest

SLOWED = 3.0
"""At most so many times its share of the budget advice takes, where other people's work slows this process
down as much: budgets are clock time, and a share that only waits measures nothing. A choice."""
LEAST, SHORTEST, MOST = 3.0, 20.0, 180.0
"""Seconds: with less than LEAST nothing is begun. Without a budget advice takes as long as the audit did,
from SHORTEST to MOST: what a user waits for."""
_OWN = ("out", "fresh", "on_plan")
"""Settings that are about the audit alone."""


def audit_and_advise(audit: Grid, *, advice: bool, command: str = "", **settings: Any) -> AuditLog:
    """Run an audit and, where it shows a leak, measure what could be changed. settings: of `run_grid`."""
    begun = time.monotonic()
    log = run_grid(audit, reserved=SHARE if advice else 0.0, **settings).point()
    if advice:
        seconds = left(audit, time.monotonic() - begun)
        again = {name: value for name, value in settings.items() if name not in _OWN}
        measure_actions(audit, log, seconds=seconds, command=command, **again)
    return log


def left(audit: Grid, taken: float) -> float:
    """Of the budget, and at least the share that was kept for it: on a busy machine attacks take longer than
    was measured, and no advice at all is the worse loss. Without a budget: as long as the audit took, within
    limits."""
    spec = audit.points[0].spec
    if spec.budget is None and spec.attacks != AUTO:
        return min(MOST, max(SHORTEST, taken))
    budget = DEFAULT_BUDGET if spec.budget is None else spec.budget
    return max(budget - taken, SHARE * budget)


def measure_actions(
    audit: Grid,
    log: AuditLog,
    *,
    seconds: float,
    command: str = "",
    on_note: Callable[[str], None] | None = None,
    **where: Any,
) -> RunLog | None:
    """Run the short study into the audit's folder; None where there is nothing to measure, or no way to.

    seconds: what is left of the budget. command: what audited this deployment. where: as of `run_grid`.
    """
    say = on_note or (lambda said: None)
    found = strongest(log, summarise(log))
    if not found:
        return None
    if audit.points[0].spec.recorded is not None:
        say("no advice: recorded exchanges cannot be played again with a change; audit a simulation for it.")
        return None
    if finished := _finished(log):
        return finished
    if seconds < LEAST:
        say(f"no advice: {max(0.0, seconds):.0f} s of the budget are left; raise it with --budget.")
        return None
    attacks = list({one.attack.plain.key: (one.attack.plain, one.seconds) for one in found}.values())
    try:
        clock, worked = time.monotonic(), time.process_time()
        grid = advice_grid(audit, attacks=attacks, crafted=bool(found[0].crafted), seconds=seconds)
        slowed = _slowed(time.monotonic() - clock, time.process_time() - worked)
        if seconds < 4 * WORKER_START and where.get("engine", "auto") == "auto" and not where.get("jobs"):
            where["engine"] = "here"  # more than a quarter of the time would go into starting processes
        asked = {**grid.asked, "audit": log.header.run_key, "made_for": made_for(log), "command": command}
        changes = len(grid.points) - 1
        busy = f", on this busy machine up to {slowed * seconds:.0f} s" if slowed > 1.5 else ""
        say(f"measuring {changes} changes of the deployment ({seconds:.0f} s{busy}; --no-advice skips it).")
        grid = replace(grid, asked=asked, budget=slowed * seconds)
        return run_grid(grid, out=log.folder.path / ADVICE, fresh=True, **where)
    except SeepageError as reason:
        say(f"no advice: {reason}")
        return None


def _slowed(clock: float, worked: float) -> float:
    """How many times as long this process takes as its work does, from 1 to `SLOWED`.

    >>> _slowed(2.0, 1.0), _slowed(1.0, 1.9), _slowed(60.0, 1.0)
    (2.0, 1.0, 3.0)
    """
    return min(SLOWED, max(1.0, clock / max(worked, 1e-6)))


def made_for(log: AuditLog) -> str:
    """Of the audit's results: advice about others, or about those of other code, is measured again."""
    return origin_key(log.header.cell_keys)


def _finished(log: AuditLog) -> RunLog | None:
    """The advice of an earlier run of the same command."""
    try:
        found = RunLog.read(log.folder.path / ADVICE, kind="study")
    except SeepageError:
        return None
    return found if found.header.spec.get("made_for") == made_for(log) and not found.missing else None
