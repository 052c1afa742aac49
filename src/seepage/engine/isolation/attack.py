"""An attack whose work is done in another process, which never held a private example.

What crosses over is what a server has: models as they were before any client used them (later ones as
weights), updates, and `Knowledge`, each tensor copied out of whatever memory it lay in. What comes back are
weights and a `Reconstruction`. A secret of the attack stays with it; the audit keeps a number in its place.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seepage.attacks import ATTACKS, Attack
from seepage.core.errors import AttackError, ModelError, SpecError
from seepage.core.registry import Entry, offered
from seepage.core.settings import construct
from seepage.core.types import Batch, Broadcast, Crafted, Exchange, Grant, Knowledge, Reconstruction, RowCount
from seepage.engine.isolation.models import rebuilt
from seepage.engine.isolation.objects import shipped
from seepage.engine.isolation.process import AttackProcess

MAY_READ = "may_read"
"""The setting of an outside attack that names files it may open, for weights of its own."""


@dataclass(frozen=True)
class Token:
    """Stands for a secret that the attack keeps on its side."""

    number: int


def planned_attack(name: str, settings: Mapping[str, Any]) -> Attack:
    """The attack as an audit runs it: in a process of its own if any of its code is from outside.

    >>> planned_attack("analytic_extraction", {}).active
    False
    """
    if is_outside(name, settings):
        return IsolatedAttack(name, settings)
    attack: Attack = construct(ATTACKS.find(name), settings, f"attack '{name}'")
    return attack


def is_outside(name: str, settings: Mapping[str, Any]) -> bool:
    """Whether the attack, or one that its settings name, comes from outside of the package.

    >>> is_outside("tag", {}), is_outside("adaptive", {"attack": "my_package.attacks:Mine"})
    (False, True)
    """
    inside = _inside(_resolved(settings))
    return ATTACKS.entry(name).outside or any(":" in one or one in ATTACKS.held for one in inside)


_INSIDE = frozenset({"attack", "inner"})
"""Settings that name another attack: the one that is adapted, the one that gets what was fished."""


def _inside(settings: Mapping[str, Any]) -> Iterator[str]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _inside(value)
        elif key in _INSIDE and isinstance(value, str):
            yield value


def _resolved(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with an installed package's attacks by where they lie: their process cannot look it up."""
    offers = offered(ATTACKS.group)

    def where(key: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return _resolved(value)
        known = key in _INSIDE and value in offers and value not in ATTACKS
        return ATTACKS.entry(value).where if known else value

    return {key: where(key, value) for key, value in settings.items()}


class IsolatedAttack(Attack):
    """Any attack, by its name and settings, in a process of its own (or in `process`, if given).

    >>> attack = IsolatedAttack("analytic_extraction", {})
    >>> attack.active
    False
    >>> attack.close()
    """

    any_training = True  # the attack inside decides

    def __init__(
        self, name: str, settings: Mapping[str, Any], *, process: AttackProcess | None = None
    ) -> None:
        entry = ATTACKS.entry(name)
        self._named = {"name": name, "where": _importable(name, entry), "package": entry.package}
        self._settings, self._may_read = _without_grants(_resolved(settings))
        held = {one: ATTACKS.held[one] for one in (name, *_inside(self._settings)) if one in ATTACKS.held}
        self._held = shipped(held) if held else b""
        self._process = process
        self._begin()

    def close(self) -> None:
        """End the process; the next question starts another."""
        if self._process is not None:
            self._process.stop()
            self._process = None

    def check(self, model: nn.Module, known: Knowledge) -> None:
        self._begin()
        number = self._shown(model)
        self._know(known)
        self._ask("check", model=number)

    def craft(self, model: nn.Module, history: Sequence[Exchange], known: Knowledge) -> Crafted | None:
        if not history:
            self._begin()
        number = self._shown(model)
        self._know(known)
        seen = self._seen(history)
        name = self._next
        self._next += 1
        answer = self._ask("craft", model=number, history=seen, number=name, seed=known.seed)
        if answer is None:
            return None
        crafted = rebuilt(answer, model)
        self._numbers[id(crafted)] = (crafted, name)
        clients, others = answer.get("clients"), answer.get("others")
        return Crafted(
            crafted,
            Token(name),
            None if clients is None else tuple(int(c) for c in clients),
            None if others is None else rebuilt(others, model),
            tuple(rebuilt(one, model) for one in answer.get("turns") or ()),
        )

    def reconstruct(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:
        self._know(known)
        answer = self._ask("reconstruct", exchanges=self._seen(exchanges), seed=known.seed)
        return _reconstruction(answer)

    def _begin(self) -> None:
        """A new attack on the other side, which has seen nothing, in the process that is there."""
        if self._process is None or not self._process.running:
            self._process = AttackProcess(self._may_read)
        self._next = 0
        self._base: int | None = None
        self._known: Knowledge | None = None
        # With the objects themselves: the id of one that is gone may be another's.
        self._numbers: dict[int, tuple[nn.Module, int]] = {}
        self._exchanges: dict[int, tuple[Exchange, int]] = {}
        threads = torch.get_num_threads()
        begin = {"named": self._named, "settings": self._settings, "threads": threads}
        answer = self._ask("begin", **begin, held=self._held)
        self.requires = frozenset(Grant(grant) for grant in answer["requires"])

    @property
    def confinement(self) -> str:  # type: ignore[override]
        """
        >>> attack = IsolatedAttack("analytic_extraction", {})
        >>> attack.confinement.startswith("Ran in a process that never held the data, locked in by")
        True
        >>> attack.close()
        """
        assert self._process is not None
        lock = (
            "the kernel" if self._process.locked_by_kernel else "Python alone (this system has no Landlock)"
        )
        files = f" It could read {', '.join(self._may_read)}." if self._may_read else ""
        return f"Ran in a process that never held the data, locked in by {lock}.{files}"

    def _ask(self, what: str, **content: Any) -> Any:
        assert self._process is not None
        return self._process.ask(what, **content)

    def _know(self, known: Knowledge) -> None:
        if known is not self._known:
            auxiliary = known.auxiliary
            if auxiliary is not None:
                targets = None if auxiliary.targets is None else _own(auxiliary.targets)
                auxiliary = Batch(_own(auxiliary.inputs), _own(auxiliary.labels), targets)
            self._ask("know", known=replace(known, auxiliary=auxiliary))
            self._known = known

    def _shown(self, model: nn.Module) -> int:
        """The number of a model on the other side. The first is sent whole, the others as weights."""
        if id(model) in self._numbers:
            return self._numbers[id(model)][1]
        number = self._next
        self._next += 1
        if self._base is None:
            self._ask("show", number=number, model=_pickled(model), base=None)
            self._base = number
        else:
            weights = {name: _own(tensor) for name, tensor in model.state_dict().items()}
            self._ask("show", number=number, model=weights, base=self._base)
        self._numbers[id(model)] = (model, number)
        return number

    def _seen(self, exchanges: Sequence[Exchange]) -> list[int]:
        """The numbers of exchanges on the other side; each is sent once."""
        for exchange in exchanges:
            if id(exchange) in self._exchanges:
                continue
            secret = exchange.secret.number if isinstance(exchange.secret, Token) else None
            number = secret if secret is not None else self._shown(exchange.broadcast.model)
            self._ask("add", exchange=_bare(exchange), model=number, secret=secret)
            self._exchanges[id(exchange)] = (exchange, len(self._exchanges))
        return [self._exchanges[id(exchange)][1] for exchange in exchanges]


def _importable(name: str, entry: Entry) -> str:
    module, _, thing = entry.where.partition(":")
    if entry.where and (not thing.isidentifier() or module == "__main__"):
        raise SpecError(
            f"attack '{name}' is from outside of seepage and runs in a process of its own, which cannot "
            'import it: define it at the top level of a module, and name it "package.module:thing".'
        )
    return entry.where


def _without_grants(settings: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The attack's own settings, and the files it may read (for an adaptive one: those of the one inside)."""
    own = dict(settings)
    granted = own.pop(MAY_READ, ())
    if isinstance(own.get("options"), Mapping) and MAY_READ in own["options"]:
        own["options"] = {key: value for key, value in own["options"].items() if key != MAY_READ}
        granted = settings["options"][MAY_READ]
    names = [granted] if isinstance(granted, str) else list(granted)
    if not all(isinstance(name, str) and Path(name).exists() for name in names):
        raise SpecError(f"{MAY_READ} names {names}: give files or folders that exist.")
    return own, tuple(names)


def _own(tensor: Tensor) -> Tensor:
    """A copy in memory of its own: a view would take along all that lies beside it."""
    return tensor.detach().clone()


def _bare(exchange: Exchange) -> Exchange:
    """The exchange without its model and secret, which the other side has."""
    update = exchange.update
    buffers = update.buffers
    return replace(
        exchange,
        broadcast=Broadcast(nn.Identity(), exchange.broadcast.round),
        update=replace(
            update,
            tensors={name: _own(tensor) for name, tensor in update.tensors.items()},
            buffers=None if buffers is None else {name: _own(tensor) for name, tensor in buffers.items()},
        ),
        labels=None if exchange.labels is None else _own(exchange.labels),
        secret=None,
    )


def _pickled(model: nn.Module) -> bytes:
    try:
        return pickle.dumps(model)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ModelError(
            f"the attack runs in a process of its own, and the model cannot be sent there ({error}): define "
            "its classes at the top level of a module, without hooks or lambdas."
        ) from None


def _reconstruction(answer: Any) -> Reconstruction:
    """What came back, checked field by field: it was written by code from outside."""
    try:
        rows = answer["rows"]
        complete = answer["complete"]
        return Reconstruction(
            values=_tensor(answer, "values"),
            space=str(answer["space"]),
            model_units=bool(answer["model_units"]),
            claimed=_optional(answer, "claimed", torch.bool),
            confidence=_optional(answer, "confidence"),
            support=_optional(answer, "support"),
            rows=None if rows is None else RowCount(total=int(rows["total"]), active=int(rows["active"])),
            source=_optional(answer, "source"),
            shared=bool(answer["shared"]),
            label_counts=_optional(answer, "label_counts"),
            words=_optional(answer, "words", torch.bool),
            complete=None if complete is None else bool(complete),
            if_declared=bool(answer["if_declared"]),
            notes=tuple(str(note) for note in answer["notes"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise AttackError(f"the attack's reconstruction makes no sense ({error}).") from None


def _tensor(answer: Mapping[str, Any], name: str) -> Tensor:
    value = answer[name]
    if not isinstance(value, Tensor):
        raise TypeError(f"'{name}' is no tensor")
    return value


def _optional(answer: Mapping[str, Any], name: str, kind: torch.dtype | None = None) -> Tensor | None:
    if answer[name] is None:
        return None
    value = _tensor(answer, name)
    return value if kind is None else value.to(kind)
