"""An audit's figures in an experiment tracker: `seepage export RUN --to mlflow` or `--to wandb`.

Only figures, settings and the verdict leave by default. The page shows private examples and is sent only
where that is asked for; the examples' values themselves are never sent.
"""

from __future__ import annotations

from collections.abc import Callable

from seepage.core.errors import SpecError
from seepage.core.registry import unknown
from seepage.integrations.trackers.tracked import Tracked
from seepage.integrations.trackers.with_mlflow import to_mlflow
from seepage.integrations.trackers.with_wandb import to_wandb
from seepage.record import AuditLog

TRACKERS: dict[str, Callable[[Tracked, str], str]] = {"mlflow": to_mlflow, "wandb": to_wandb}


def export(log: AuditLog, to: str, *, project: str = "seepage", report: bool = False) -> str:
    """Send an audit to a tracker; returns where it is found there.

    project: the experiment (MLflow) or project (Weights & Biases). report: send the page too, which shows
    private examples.

    >>> export(None, "mlfow")
    Traceback (most recent call last):
    ...
    seepage.core.errors.SpecError: unknown tracker 'mlfow': did you mean 'mlflow'? Valid: mlflow, wandb.
    """
    if to not in TRACKERS:
        raise SpecError(unknown("tracker", to, TRACKERS))
    return TRACKERS[to](Tracked.of(log, report=report), project)


__all__ = ["TRACKERS", "Tracked", "export"]
