"""Checks of the settings that named attacks share: a wrong one gets one clear sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from seepage.core.registry import unknown
from seepage.core.settings import check_budget, construct
from seepage.core.types import LocalTraining

T = TypeVar("T")


def check_settings(
    *,
    steps: int,
    restarts: int = 1,
    step_size: float = 1.0,
    weights: Mapping[str, float] | None = None,
    counts: Sequence[int] | None = None,
    budget: float | None = None,
) -> None:
    """Raise ValueError for a setting with which no search can run."""
    if steps < 1:
        raise ValueError(f"steps must be at least 1, not {steps}: without a step nothing is searched.")
    if restarts < 1:
        raise ValueError(f"restarts must be at least 1, not {restarts}.")
    if not step_size > 0:
        raise ValueError(f"step_size must be positive, not {step_size}: 0.1 to 0.3 is usual.")
    for name, weight in (weights or {}).items():
        if not weight >= 0:
            raise ValueError(f"{name} must be 0 or more, not {weight}: it weighs a penalty.")
    if counts is not None and (len(counts) == 0 or min(counts) < 1):
        raise ValueError(f"counts must name numbers of examples of at least 1, not {list(counts)}.")
    check_budget(budget)


def assumed_training(assume: Mapping[str, Any] | None) -> LocalTraining | None:
    """Local training to simulate where it is not granted, from a user's table of settings.

    >>> assumed_training({"lr": 0.05, "epochs": 2}).lr
    0.05
    """
    if assume is None:
        return None
    training: LocalTraining = construct(LocalTraining, assume, "assume")
    for name in ("batch_size", "epochs", "steps"):
        count = getattr(training, name)
        if count is not None and count < 1:
            raise ValueError(f"{name} in assume must be at least 1, not {count}.")
    if not (training.lr > 0 and 0 <= training.momentum < 1 and training.weight_decay >= 0):
        raise ValueError("assume needs lr above 0, momentum from 0 to below 1 and weight_decay of 0 or more.")
    return training


def choose(registry: Mapping[str, T], name: str, kind: str) -> T:
    """The entry called `name`, or a ValueError that lists the valid names.

    >>> choose({"a": 1}, "b", "letter")
    Traceback (most recent call last):
    ValueError: unknown letter 'b': Valid: a.
    """
    if name not in registry:
        raise ValueError(unknown(kind, name, registry))
    return registry[name]
