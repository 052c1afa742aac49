"""What the registry says about a defense: where it runs, whom it trusts and what its promise is worth."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from seepage.types import Defense, Grant, InputSpec, LocalTraining

RunsAt = Literal["client", "server", "protocol"]
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
    input: InputSpec | None = None
    """Shape and range of one example."""


@dataclass(frozen=True, kw_only=True)
class Described(ABC):
    """What the registry says about every defense."""

    description: str
    runs_at: RunsAt
    trusts: str
    """Whom a client must trust for it to hold."""
    guarantee: Guarantee
    adaptive: str
    """What an attacker who knows of it does."""

    @property
    @abstractmethod
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """What a user may set."""

    @property
    def settings(self) -> dict[str, Any]:
        """What a user may set, with the defaults.

        >>> from seepage.defenses import DEFENSES, MEASURES
        >>> DEFENSES["dp_sgd"].settings, MEASURES["median"].settings
        ({'clip': 1.0, 'sigma': 1.0, 'seed': 0}, {'clients': 4})
        """
        return {name: parameter.default for name, parameter in self.parameters.items()}


@dataclass(frozen=True, kw_only=True)
class DefenseEntry(Described):
    """A defense that wraps the client's local step."""

    build: Callable[..., Defense]
    replaces_training: bool = False
    """It does the local training itself, so it must be the innermost one."""
    reads_data: bool = False
    """It uses the private examples itself; all others only process what comes from inside them, which cannot
    weaken a formal guarantee given there."""

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        return _without(self.build, "deployment")

    def bound(self, *, seed: int, deployment: Deployment) -> Mapping[str, Any]:
        """Of what every audit knows, the part that this defense asks for."""
        known = {"seed": seed, "deployment": deployment}
        wanted = inspect.signature(self.build).parameters
        return {name: value for name, value in known.items() if name in wanted}


@dataclass(frozen=True, kw_only=True)
class MeasureEntry(Described):
    """A defense that changes the protocol. The server runs the protocol, so every attack knows of it."""

    change: Callable[..., Mapping[str, Any]]
    """From the protocol's batch size and the settings to what becomes of the protocol."""
    hides: frozenset[Grant] = frozenset()
    """What the server is no longer shown."""

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        return _without(self.change, "batch_size")


def _without(factory: Callable[..., Any], given: str) -> Mapping[str, inspect.Parameter]:
    """The parameters of a registry entry but for the one that the audit fills in."""
    return {name: p for name, p in inspect.signature(factory).parameters.items() if name != given}
