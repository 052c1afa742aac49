"""Objects that a program gives in Python in the place of names: attacks, defenses, metrics, a threat model.

A spec is plain data, so each object gets a name in it, and the registry of its kind holds the object under
that name, in the process that runs the audit and in its workers.
"""

from __future__ import annotations

import functools
import pickle
import re
from collections.abc import Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle
from torch import Tensor, nn

from seepage.attacks import ATTACKS
from seepage.core.errors import SpecError
from seepage.core.registry import Registry, summary, wants
from seepage.data import Dataset
from seepage.defenses import DEFENSES, DefenseEntry
from seepage.engine.identity import digest
from seepage.engine.identity.functions import code_digest
from seepage.engine.isolation.objects import shipped
from seepage.metrics import METRICS
from seepage.protocol import THREATS

Given = Mapping[str, Mapping[str, Any]]
"""By key of a spec, objects by the name that they have there."""
REGISTRIES: dict[str, Registry[Any]] = {
    "attacks": ATTACKS,
    "defenses": DEFENSES,
    "metrics": METRICS,
    "threat": THREATS,
}


def take(values: Mapping[str, Any]) -> tuple[dict[str, Any], Given]:
    """A specification with names in the place of objects, and the objects, which are held from now on.

    >>> def halve(broadcast, batch, next_step): ...
    >>> take({"defenses": [halve, "sign"]})[0]
    {'defenses': ['halve', 'sign']}
    """
    plain, given = dict(values), {}
    for key, registry in REGISTRIES.items():
        if key not in values or isinstance(values[key], str):
            continue
        names = _Names(registry)
        several = isinstance(values[key], list | tuple)
        plain[key] = [names.of(one) for one in values[key]] if several else names.of(values[key])
        given[key] = names.objects
    hold(given)
    return plain, given


def hold(given: Given) -> None:
    """Let every registry find these objects, and none of an earlier audit."""
    for key, registry in REGISTRIES.items():
        things = dict(given.get(key, {}))
        if key == "defenses":
            things = {name: _afresh(name, thing) for name, thing in things.items()}
        registry.hold(things)


class _Names:
    """Names for the objects of one key: what each is called, with a number where that is taken."""

    def __init__(self, registry: Registry[Any]) -> None:
        self._registry = registry
        self.objects: dict[str, Any] = {}

    def of(self, one: Any) -> Any:
        if isinstance(one, str):
            return one
        if isinstance(one, Mapping):
            return {key: self.of(value) if key in ("name", "base") else value for key, value in one.items()}
        own = getattr(one, "name", "") or getattr(one, "__name__", "") or getattr(one, "title", "").lower()
        name = first = re.sub(r"\W+", "_", own or type(one).__name__).strip("_")
        taken, number = {*self._registry.entries(), *self.objects}, 2
        while name in taken:
            name, number = f"{first}_{number}", number + 1
        self.objects[name] = one
        return name


def _afresh(name: str, thing: Any) -> Any:
    """A defense that is ready may keep things between calls: each cell gets a copy of what was given."""
    if not callable(thing) or wants(thing) != 3:
        return thing
    try:
        kept = bytes(cloudpickle.dumps(thing))
    except Exception as error:  # what an object refuses to be pickled with is its own affair
        raise SpecError(
            f"defense '{name}' cannot be copied ({type(error).__name__}: {error}): give one without open "
            "files, locks or generators."
        ) from None
    return DefenseEntry(build=lambda: pickle.loads(kept), code=thing, description=summary(thing))


def refuse_examples(dataset: Dataset) -> None:
    """An attack that was given as an object is sent where no data is; it must not carry some along."""
    if ATTACKS.held:
        shipped(ATTACKS.held, dataset.inputs)


def contents(thing: Any) -> str:
    """A digest of what an object holds, whatever that is made of: another setting is another attack.

    >>> from seepage.attacks.prior_only import PriorOnly
    >>> contents(PriorOnly(samples=2)) == contents(PriorOnly(samples=2)) != contents(PriorOnly(samples=3))
    True
    """
    return digest(_plain(thing, ()))


def _plain(thing: Any, inside: Sequence[int]) -> Any:
    """Tables, lists, texts, numbers and tensors."""
    if id(thing) in inside or isinstance(thing, ModuleType | type):
        return getattr(thing, "__qualname__", type(thing).__qualname__)
    parts: Any = None
    if isinstance(thing, Mapping):
        parts = {str(key): value for key, value in thing.items()}
    elif isinstance(thing, list | tuple):
        parts = dict(enumerate(thing))
    elif isinstance(thing, nn.Module):
        parts = {"weights": dict(thing.state_dict()), "layers": str(thing)}
    elif isinstance(thing, functools.partial):
        parts = {"function": thing.func, "arguments": thing.args, "settings": thing.keywords}
    elif isinstance(thing, FunctionType):
        cells = [cell.cell_contents for cell in thing.__closure__ or ()]
        parts = {"code": code_digest(thing.__code__), "around": cells, "defaults": thing.__kwdefaults__}
    elif hasattr(thing, "__dict__") and not isinstance(thing, Tensor):
        parts = vars(thing)
    if parts is None:
        return thing
    inner = {str(key): _plain(part, (*inside, id(thing))) for key, part in parts.items()}
    return [type(thing).__qualname__, inner]
