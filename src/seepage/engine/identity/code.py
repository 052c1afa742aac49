"""The code behind a function, a class or an object: its module with all of one's own that it imports."""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

from torch import nn

from seepage.engine.identity.functions import MAIN, changed_in_memory, parts, unwrapped
from seepage.engine.identity.hashing import digest, is_plain
from seepage.engine.identity.sources import OURS, Source, file_of, is_own, parse

REGISTRIES = frozenset(
    {
        "seepage",
        "seepage.api",
        "seepage.attacks",
        "seepage.attacks.adaptive.answers",
        "seepage.defenses",
        "seepage.guardian",
        "seepage.engine.isolation.attack",
        "seepage.record",
        "seepage.record.log",
        "seepage.record.store",
        "seepage.data",
        "seepage.models",
        "seepage.models.loading",
        "seepage.metrics.catalogue",
        "seepage.names.attacks",
        "seepage.names.data",
        "seepage.names.defenses",
        "seepage.names.metrics",
        "seepage.names.models",
    }
)
"""They list everything there is. What a run takes from them is read by itself: the attack, the defenses, the
model's classes; of data and weights the values count, not who loaded them. How results are written changes
none of them: the log has a version for that."""

_DATA_FILES = ("*.json",)
"""Beside seepage's own modules: thresholds."""


@dataclass(frozen=True)
class Code:
    """What was found behind some things."""

    digest: str
    packages: frozenset[str]
    """Installed packages that are imported, by the name of the import."""


@dataclass
class _Found:
    modules: dict[str, str] = field(default_factory=dict)
    objects: dict[int, tuple[Any, str]] = field(default_factory=dict)
    """By id; the object itself is held, so that no other one gets its id."""
    packages: set[str] = field(default_factory=set)


class CodeReader:
    """Reads every file once: what a process computes belongs to the code that it started with.

    through_registries: follow the catalogues too, for code that looks up attacks by itself.

    >>> from seepage.attacks.prior_only import prior_only
    >>> reader = CodeReader()
    >>> reader.read(prior_only) == reader.read(prior_only), "torch" in reader.read(prior_only).packages
    (True, True)
    """

    def __init__(self, *, through_registries: bool = False) -> None:
        self._stops = frozenset() if through_registries else REGISTRIES
        self._sources: dict[str, Source | None] = {}
        self._data_files: dict[str, str] = {}

    def read(self, *things: Any) -> Code:
        """things: modules by name, functions, classes, `nn.Module`s; of another object, its class."""
        found = _Found()
        for thing in things:
            if isinstance(thing, str):
                self._module(thing, found)
            else:
                self._object(thing, found)
        objects = sorted(text for _, text in found.objects.values() if text)
        return Code(digest(sorted(found.modules.items()), objects), frozenset(found.packages))

    def _object(self, thing: Any, found: _Found) -> None:
        if isinstance(thing, functools.partial):
            plain = [value for value in (*thing.args, *sorted(thing.keywords.items())) if is_plain(value)]
            found.objects[id(thing)] = (thing, digest(plain))
        thing = unwrapped(thing)
        if isinstance(thing, ModuleType):
            self._module(thing.__name__, found)
        elif isinstance(thing, FunctionType | type):
            self._definition(thing, found)
        elif isinstance(thing, nn.Module):
            for kind in {type(module) for module in thing.modules()}:
                self._definition(kind, found)
        elif _is_ones_own(type(thing)):
            self._definition(type(thing), found)

    def _definition(self, thing: FunctionType | type, found: _Found) -> None:
        if id(thing) in found.objects:
            return
        module = thing.__module__ or ""
        written = thing.__code__.co_filename if isinstance(thing, FunctionType) else None
        in_file = module not in MAIN and file_of(module) is not None
        if in_file:
            found.objects[id(thing)] = (thing, "")
            self._module(module, found)
            for base in thing.__bases__ if isinstance(thing, type) else ():
                self._definition(base, found)
        elif module in MAIN or written is not None or isinstance(thing, type):
            found.objects[id(thing)] = (thing, "")
            if module not in MAIN and (module in sys.stdlib_module_names or module == "builtins"):
                return
            text, used = parts(thing)
            found.objects[id(thing)] = (thing, text)
            for other in used:
                self._object(other, found)

    def _module(self, module: str, found: _Found) -> None:
        waiting = [module]
        while waiting:
            name = waiting.pop()
            if name in found.modules or name in MAIN:
                continue
            source = self._source(name)
            if source is None:
                top = name.partition(".")[0]
                if top not in sys.stdlib_module_names:
                    found.packages.add(top)
                continue
            found.modules[name] = source.digest + self._beside(name)
            for imported, names in source.imports:
                waiting += self._targets(imported, names)

    def _targets(self, module: str, names: tuple[str, ...]) -> list[str]:
        """The modules behind one import statement."""
        if not is_own(module, file_of(module)):
            return [module]
        inner = [f"{module}.{name}" for name in names if self._source(f"{module}.{name}") is not None]
        if module in self._stops:
            taken = [getattr(sys.modules.get(module), name, None) for name in names]
            homes = [getattr(unwrapped(one), "__module__", None) for one in taken]
            return [*inner, *(h for h in homes if isinstance(h, str) and h not in self._stops)]
        parents: list[str] = []
        if module.partition(".")[0] != OURS:  # ours only list what they hold
            pieces = module.split(".")
            parents = [".".join(pieces[:i]) for i in range(1, len(pieces))]
        return [module, *parents, *inner]

    def _source(self, module: str) -> Source | None:
        """None for what is not one's own."""
        if module not in self._sources:
            self._sources[module] = self._read(module)
        return self._sources[module]

    def _read(self, module: str) -> Source | None:
        file = file_of(module)
        if file is None or not is_own(module, file):
            return None
        source = parse(file.read_bytes(), module, file.name == "__init__.py")
        loaded = sys.modules.get(module)
        if loaded is None or source.code is None or module.partition(".")[0] == OURS:
            return source
        changed = changed_in_memory(loaded, source.code, str(loaded.__file__))
        return Source(digest(source.digest, changed), source.imports, source.code) if changed else source

    def _beside(self, module: str) -> str:
        """Data files in the folder of one of seepage's modules."""
        file = file_of(module)
        if file is None or module.partition(".")[0] != OURS:
            return ""
        folder = file.parent
        if str(folder) not in self._data_files:
            files = sorted(f for pattern in _DATA_FILES for f in folder.glob(pattern))
            self._data_files[str(folder)] = digest([f.read_bytes() for f in files]) if files else ""
        return self._data_files[str(folder)]


def _is_ones_own(kind: type) -> bool:
    return kind.__module__ in MAIN or is_own(kind.__module__, file_of(kind.__module__))
