"""One registry for everything that can be named: attacks, defenses, metrics, detectors, models, data, tables.

A name is one of seepage's own, or one that an installed package offers as an entry point; what has no name
is written "package.module:thing". Nothing is imported before it is asked for, so that names can be listed
without torch, and a package that cannot be imported hurts no name but its own.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any, TypeVar

from seepage.core.errors import SeepageError, SpecError
from seepage.core.user_code import current_folder_importable, reason

T = TypeVar("T")

REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
"""package.module:thing"""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One name: where the thing behind it is defined, and what can be said of it without importing it."""

    where: str
    """package.module:thing; empty: an object that the program gave."""
    description: str = ""
    """One line; empty: the first paragraph of the thing's docstring."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else its room says of it."""
    package: str = ""
    """The installed package that offers the name, with its version; empty: seepage itself."""

    @property
    def outside(self) -> bool:
        """Not seepage's own code.

        >>> Entry(where="seepage.attacks.prior_only:prior_only").outside, Entry(where="mine:Attack").outside
        (False, True)
        """
        return self.where.partition(":")[0].partition(".")[0] != "seepage"


@dataclass(frozen=True, kw_only=True)
class Family:
    """Things of another package that are named "family:Thing": those that come with it, and by their path any
    others of its kind."""

    title: str
    package: str
    """Its import name."""
    install: str
    entries: Mapping[str, Entry]
    facts: Mapping[str, Any]
    """Of things that are named by their path."""
    own: str
    """How one of a user's own is written."""

    def entry(self, kind: str, reference: str, error: type[SeepageError]) -> Entry:
        """What "family:Thing" or "family:package.module.Thing" names; nothing is imported."""
        prefix, _, thing = reference.partition(":")
        if "." in thing or ":" in thing:
            module, _, name = thing.replace(":", ".").rpartition(".")
            entry = Entry(where=f"{module}:{name}", facts=self.facts)
        elif thing in self.entries:
            entry = self.entries[thing]
        else:
            names = [f"{prefix}:{name}" for name in self.entries]
            raise error(f"{unknown(kind, reference, names)} Also, {self.own}.")
        if entry.outside and find_spec(self.package) is None:
            raise error(f"{kind} '{reference}' needs {self.title}: {self.install}.")
        return entry


class Registry(MutableMapping[str, T]):
    """As a mapping: seepage's own names (and what a program adds), each imported when it is first asked for.
    `find` takes what a user writes: these, names of installed packages, and "package.module:thing".

    kind: what a user calls one of them. group: the entry points that packages offer names under.
    make: from a name, its entry and the imported thing to what the registry holds.
    function: only what can be called has a place here.
    families: things of other packages, by what stands before the colon of their names.

    >>> entries = {"spec": Entry(where="seepage.core.errors:SpecError")}
    >>> registry = Registry("error", group="seepage.errors", entries=entries)
    >>> registry["spec"].__name__, registry.find("builtins:ValueError").__name__
    ('SpecError', 'ValueError')
    >>> registry.find("spek")
    Traceback (most recent call last):
    ...
    seepage.core.errors.SpecError: unknown error 'spek': did you mean 'spec'? Valid: spec.
    """

    def __init__(
        self,
        kind: str,
        *,
        group: str,
        entries: Mapping[str, Entry],
        make: Callable[[str, Entry, Any], T] | None = None,
        function: bool = False,
        families: Mapping[str, Family] | None = None,
    ) -> None:
        self.kind = kind
        self.families = dict(families or {})
        self._function = function
        self.group = group
        self._entries = dict(entries)
        self._make = make
        self._loaded: dict[str, T] = {}
        self.held: Mapping[str, Any] = {}
        """Objects that the program gave, by the names that its audit has for them."""

    def hold(self, things: Mapping[str, Any]) -> None:
        """Find these objects too, and no longer those before."""
        self.held = dict(things)

    def __getitem__(self, name: str) -> T:
        if name not in self._loaded:
            self._loaded[name] = self._made(name, self._entries[name])
        return self._loaded[name]

    def __setitem__(self, name: str, thing: T) -> None:
        home = f"{getattr(thing, '__module__', '')}:{getattr(thing, '__qualname__', '')}"
        self._entries.setdefault(name, Entry(where=home))
        self._loaded[name] = thing

    def __delitem__(self, name: str) -> None:
        del self._entries[name]
        self._loaded.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, reference: str, *, error: type[SeepageError] = SpecError, hint: str = "") -> T:
        """What a user's name, or "package.module:thing", stands for; `hint` follows the valid names."""
        entry = self.entry(reference, error=error, hint=hint)
        return self[reference] if reference in self else self._made(reference, entry, error)

    def entry(self, reference: str, *, error: type[SeepageError] = SpecError, hint: str = "") -> Entry:
        """The same without importing anything."""
        if reference in self.held:
            return Entry(where="")
        family = self.families.get(reference.partition(":")[0])
        if ":" in reference:
            return Entry(where=reference) if family is None else family.entry(self.kind, reference, error)
        offers = offered(self.group).get(reference, ())
        if reference in self:
            for other in offers:
                warnings.warn(refusal(self.kind, reference, other), stacklevel=3)
            return self._entries[reference]
        if len(offers) > 1:
            several = " and ".join(f'{one.package} ("{one.where}")' for one in offers)
            raise error(f"{self.kind} '{reference}' is offered by {several}: write which one you mean.")
        if not offers:
            text = unknown(
                self.kind, reference, [*self, *offered(self.group), *self.held, *self._of_families()]
            )
            raise error(f"{text} {hint}".rstrip())
        return offers[0]

    def entries(self) -> dict[str, Entry]:
        """Everything that has a name, seepage's own first; of names offered twice, none."""
        offers = offered(self.group)
        single = {name: several[0] for name, several in offers.items() if len(several) == 1}
        return {**self._entries, **{n: e for n, e in single.items() if n not in self}, **self._of_families()}

    def _of_families(self) -> dict[str, Entry]:
        return {
            f"{prefix}:{name}": entry
            for prefix, family in self.families.items()
            for name, entry in family.entries.items()
        }

    def refused(self) -> list[str]:
        """A sentence for each name that an installed package offers in vain."""
        return [
            refusal(self.kind, name, entry)
            for name, several in offered(self.group).items()
            for entry in several
            if name in self or len(several) > 1
        ]

    def _made(self, name: str, entry: Entry, error: type[SeepageError] = SpecError) -> T:
        named = {"named": f"{self.kind} '{name}'", "package": entry.package}
        thing = (
            import_thing(entry.where, error, function=self._function, **named)
            if entry.where
            else self.held[name]
        )
        return thing if self._make is None else self._make(name, entry, thing)


def refusal(kind: str, name: str, entry: Entry) -> str:
    """Why a package's name is not used.

    >>> refusal("attack", "tag", Entry(where="mine:tag", package="mine 1.0"))
    "the attack 'tag' of package mine 1.0 is refused, for the name is taken: write 'mine:tag' for that one."
    """
    return (
        f"the {kind} '{name}' of package {entry.package} is refused, for the name is taken: write "
        f"'{entry.where}' for that one."
    )


def offered(group: str) -> Mapping[str, tuple[Entry, ...]]:
    """What installed packages offer, by name. Their records are read; nothing of theirs is imported.

    >>> offered("seepage.no_such_kind")
    {}
    """
    return _offered(group, tuple(sys.path))


@lru_cache(maxsize=64)
def _offered(group: str, path: tuple[str, ...]) -> dict[str, tuple[Entry, ...]]:
    """By the folders that packages are looked for in: reading the records of all of them takes its time."""
    found: dict[str, tuple[Entry, ...]] = {}
    for point in entry_points(group=group):
        package = "" if point.dist is None else f"{point.dist.name} {point.dist.version}"
        entry = Entry(where=point.value.partition("[")[0].strip(), package=package)
        if entry not in found.get(point.name, ()):
            found[point.name] = (*found.get(point.name, ()), entry)
    return found


def import_thing(
    where: str,
    error: type[SeepageError] = SpecError,
    *,
    named: str = "",
    package: str = "",
    function: bool = False,
) -> Any:
    """What "package.module:thing" names, found in the current folder too, or `error` in one sentence.

    named, package: what a user calls it, and the installed package that it comes from.
    function: refuse what cannot be called.

    >>> import_thing("math:sqrt")(4.0)
    2.0
    """
    module_name, _, thing_name = where.partition(":")
    what = "function" if function else "thing"
    whose = f"{named} of package {package}: " if package else f"{named}: " if named and named != where else ""
    if not module_name or not thing_name:
        raise error(f"{whose}'{where}' names no {what}; write it as \"package.module:{what}\".")
    try:
        with current_folder_importable():
            module = importlib.import_module(module_name)
    except SeepageError:
        raise
    except Exception as cause:  # code from outside may raise anything while it is imported
        remedy = "reinstall or update it" if package else "install it, or run from the folder it lies in"
        raise error(
            f"{whose}'{module_name}' cannot be imported ({type(cause).__name__}: {reason(cause)}); {remedy}."
        ) from cause
    thing = getattr(module, thing_name, None)
    if not (callable(thing) if function else hasattr(module, thing_name)):
        names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise error(whose + unknown(f"{what} of module '{module_name}'", thing_name, names))
    return thing


def summary(thing: Any) -> str:
    """The first paragraph of a docstring, on one line.

    >>> summary(summary)
    'The first paragraph of a docstring, on one line.'
    """
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def wants(thing: Callable[..., Any]) -> int:
    """How many things it must be given by position: none for what builds something from settings.

    >>> wants(lambda broadcast, batch, next_step: None), wants(lambda *, sigma=1.0: None)
    (3, 0)
    """
    parameters = inspect.signature(thing).parameters.values()
    return sum(
        p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty for p in parameters
    )


def unknown(kind: str, name: str, valid: Iterable[str]) -> str:
    """The sentence for a name that does not exist: the nearest valid one first, then all of them.

    >>> unknown("attack", "analitic_extraction", ["analytic_extraction", "prior_only"])
    "unknown attack 'analitic_extraction': did you mean 'analytic_extraction'? Valid: analytic_extraction, \
prior_only."
    """
    names = sorted(valid)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return f"unknown {kind} '{name}': {hint}Valid: {', '.join(names) or 'none'}."


def lookup(registry: Mapping[str, T], name: str, kind: str) -> T:
    """The entry called `name`, or a SpecError that lists the valid names.

    >>> lookup({"a": 1}, "a", "letter")
    1
    """
    try:
        return registry[name]
    except KeyError:
        raise SpecError(unknown(kind, name, registry)) from None
