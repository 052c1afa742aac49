"""What the registry says about a defense: where it runs, whom it trusts and what its promise is worth."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from seepage.core.errors import SpecError
from seepage.core.registry import Entry, summary, wants
from seepage.core.types import Defense, Grant, InputSpec, LocalTraining

if TYPE_CHECKING:
    from seepage.defenses.canaries import Canaries

RunsAt = Literal["client", "server", "protocol"]
Guarantee = Literal["formal (DP)", "heuristic"]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How often a deployment uses the same example, from its first round to its last: a promise that is made
    for all of it depends on this.

    >>> Schedule(rounds=10, turns=4).releases
    3
    """

    rounds: int = 1
    turns: int = 1
    """A client's batches take turns: an example is in one of so many rounds."""
    batch_size: int = 1
    """Examples behind one update; of a Poisson sample the expected number."""
    sampling_rate: float = 1.0
    """Below 1: a round draws each example independently with this chance (Poisson sampling)."""
    delta: float = 1e-5

    @property
    def poisson(self) -> bool:
        return self.sampling_rate < 1

    @property
    def releases(self) -> int:
        """Rounds that an example is in, or may be drawn for."""
        return -(-self.rounds // self.turns)


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """What a defense may have to know of the protocol it runs in. Never data."""

    training: LocalTraining = field(default_factory=LocalTraining)
    schedule: Schedule = field(default_factory=Schedule)
    clients: int = 1
    """How many updates go into one aggregate."""
    aggregation: str = "per_client"
    sees_each_update: bool = True
    """Somebody looks at single updates, not only at their aggregate."""
    input: InputSpec | None = None
    """Shape and range of one example."""
    canaries: Canaries | None = None
    """Of a training whose releases are audited: they join the first client's examples."""


@dataclass(frozen=True, kw_only=True)
class Described(ABC):
    """What the registry says about every defense."""

    description: str
    runs_at: RunsAt = "client"
    trusts: str = "nobody"
    """Whom a client must trust for it to hold."""
    guarantee: Guarantee = "heuristic"
    adaptive: str = "not known to this version of seepage."
    """What an attacker who knows of it does."""

    @property
    @abstractmethod
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """What a user may set."""

    @property
    def settings(self) -> dict[str, Any]:
        """What a user may set, with the defaults; what has none must be given.

        >>> from seepage.defenses import DEFENSES
        >>> DEFENSES["gaussian_noise"].settings, DEFENSES["median"].settings
        ({'sigma': 0.01, 'cryptographic': False, 'seed': None}, {'clients': 4})
        """
        parameters = self.parameters.items()
        return {name: one.default for name, one in parameters if one.default is not one.empty}


@dataclass(frozen=True, kw_only=True)
class DefenseEntry(Described):
    """A defense that wraps the client's local step."""

    build: Callable[..., Defense]
    code: Any = None
    """What it is made of, where that is not all behind `build`."""
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


def described(name: str, entry: Entry, thing: Any) -> Described:
    """What the registry holds of a thing: a description of it as it is, a function that builds a defense (or,
    in our own list, changes the protocol), or a defense itself, which takes a broadcast, a batch and the next
    step.

    >>> described("mine", Entry(where="mine:f"), lambda broadcast, batch, next_step: None).settings
    {}
    """
    if isinstance(thing, Described):
        return thing
    if not callable(thing):
        raise SpecError(
            f"defense '{name}' is a {type(thing).__name__}: name a function that builds one, or a "
            "function of a broadcast, a batch and the next step."
        )
    facts = {**entry.facts, "description": entry.description or summary(thing)}
    if family := facts.pop("family", ""):
        return _of_framework(str(family), name, thing, facts)
    if facts.get("runs_at") == "protocol":
        hides = frozenset(Grant(grant) for grant in facts.pop("hides", ()))
        return MeasureEntry(change=thing, hides=hides, **facts)
    if wants(thing) == 3:  # a `Defense`
        return DefenseEntry(build=lambda: thing, code=thing, **facts)
    return DefenseEntry(build=thing, **facts)


def _of_framework(family: str, name: str, thing: Any, facts: dict[str, Any]) -> DefenseEntry:
    """A filter of NVIDIA FLARE or a mod of Flower, whose packages are imported here and not before."""
    wraps = import_module(f"seepage.defenses.frameworks.{family}")
    build: Callable[..., Defense] = wraps.builder(name, thing, facts.pop("config", None))
    return DefenseEntry(build=build, code=thing, **facts)
