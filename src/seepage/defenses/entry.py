"""What the registry says about a defense: where it runs, whom it trusts and what its promise is worth."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from seepage.types import Defense, LocalTraining

RunsAt = Literal["client", "server"]
Guarantee = Literal["formal (DP)", "heuristic"]


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """What a defense may have to know of the protocol it runs in. Never data."""

    training: LocalTraining = field(default_factory=LocalTraining)
    clients: int = 1
    """How many updates go into one aggregate."""
    aggregation: str = "per_client"
    sees_each_update: bool = True
    """Somebody looks at single updates, not only at their aggregate."""


@dataclass(frozen=True, kw_only=True)
class DefenseEntry:
    """One defense of the registry."""

    build: Callable[..., Defense]
    description: str
    runs_at: RunsAt
    trusts: str
    """Whom a client must trust for it to hold."""
    guarantee: Guarantee
    adaptive: str
    """What an attacker who knows of it does."""
    replaces_training: bool = False
    """It does the local training itself, so it must be the innermost one."""
    reads_data: bool = False
    """It uses the private examples itself; all others only process what comes from inside them, which cannot
    weaken a formal guarantee given there."""

    @property
    def settings(self) -> dict[str, Any]:
        """What a user may set, with the defaults.

        >>> from seepage.defenses import DEFENSES
        >>> DEFENSES["dp_sgd"].settings
        {'clip': 1.0, 'sigma': 1.0, 'seed': 0}
        """
        given = inspect.signature(self.build).parameters.values()
        return {p.name: p.default for p in given if p.name != "deployment"}

    def bound(self, *, seed: int, deployment: Deployment) -> Mapping[str, Any]:
        """Of what every audit knows, the part that this defense asks for."""
        known = {"seed": seed, "deployment": deployment}
        wanted = inspect.signature(self.build).parameters
        return {name: value for name, value in known.items() if name in wanted}
