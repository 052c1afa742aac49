"""Everything that can be named in a spec or on the command line, with one line each.

Nothing of it is imported: what the lists in `names` do not say is read off the source files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from seepage.core.errors import SpecError
from seepage.core.registry import Entry, Family, Registry, unknown
from seepage.core.unloaded import written
from seepage.names import attacks, data, defenses, detectors, frameworks, metrics, models, tables, threats

Line = dict[str, str]
"""One name: "name", "description", what its kind adds, and the "package" where it is not ours."""


class Kind(NamedTuple):
    """One kind of name, with what stands in the last column of its table."""

    group: str
    """Of the entry points that packages offer more under."""
    entries: dict[str, Entry]
    label: str
    last: Callable[[Entry, dict[str, str]], str]
    """From an entry and the settings in its source."""
    families: dict[str, Family] = {}  # noqa: RUF012 - a tuple's default, never changed

    def registry(self, called: str = "name") -> Registry[Any]:
        """With what installed packages offer."""
        return Registry(called, group=self.group, entries=self.entries, families=self.families)


def _fact(key: str, empty: str = "") -> Callable[[Entry, dict[str, str]], str]:
    def shown(entry: Entry, _settings: dict[str, str]) -> str:
        value = entry.facts.get(key, ())
        return value if isinstance(value, str) else ", ".join(sorted(value)) or empty

    return shown


def _as_written(_entry: Entry, settings: dict[str, str]) -> str:
    return ", ".join(f"{name}={default}" for name, default in settings.items())


KINDS: dict[str, Callable[[], Kind]] = {
    "attacks": lambda: Kind(attacks.GROUP, attacks.ATTACKS, "requires", _fact("requires", "nothing")),
    "threats": lambda: Kind(threats.GROUP, threats.THREATS, "grants", _fact("grants")),
    "defenses": lambda: Kind(defenses.GROUP, defenses.DEFENSES, "settings", _as_written, frameworks.FAMILIES),
    "detectors": lambda: Kind(detectors.GROUP, detectors.DETECTORS, "looks at", _fact("looks_at")),
    "metrics": lambda: Kind(metrics.GROUP, metrics.ENTRIES, "requires", _fact("needs")),
    "models": lambda: Kind(models.GROUP, models.MODELS, "data", _fact("data")),
    "data": lambda: Kind(data.GROUP, data.DATASETS, "requires", _fact("needs")),
    "tables": lambda: Kind(tables.GROUP, tables.own_tables(), "requires", _fact("needs")),
}


def catalogue(kind: str | None = None, words: Sequence[str] = ()) -> dict[str, list[Line]]:
    """By kind (or of one kind), every name, what it does and what it requires; with all `words` in its line.

    >>> [line["name"] for line in catalogue("attacks", ["fishing", "feature"])["attacks"]]
    ['feature_fishing', 'cross_device_fishing']
    """
    if kind is not None and kind not in KINDS:
        raise SpecError(unknown("kind of name", kind, KINDS))
    kinds = {one: made() for one, made in KINDS.items() if kind in (None, one)}
    return {
        one: [
            line for entry in found.registry().entries().items() if _has(line := _line(found, *entry), words)
        ]
        for one, found in kinds.items()
    }


def _line(kind: Kind, name: str, entry: Entry) -> Line:
    said, settings = written(entry.where)
    description = entry.description or said
    if kind.group == defenses.GROUP and not entry.package:
        description += f" {_standing(entry)}"
    line = {"name": name, "description": description}
    if last := kind.last(entry, settings):
        line[kind.label] = last
    if entry.package:
        line["package"] = entry.package
    return line


def _standing(entry: Entry) -> str:
    """Where a defense runs, whom it trusts and what it promises."""
    facts = {"runs_at": "client", "trusts": "nobody", "guarantee": "heuristic", **entry.facts}
    protocol = facts["runs_at"] == "protocol"
    where = "Changes the protocol" if protocol else f"Runs at the {facts['runs_at']}"
    return f"{where}, trusts {facts['trusts']}; {facts['guarantee']}."


def _has(line: Line, words: Sequence[str]) -> bool:
    text = " ".join(line.values()).lower()
    return all(word.lower() in text for word in words)


def print_catalogue(kind: str | None, words: Sequence[str]) -> None:
    """One aligned table a kind, of those that have a line to show."""
    console = Console()
    found = {one: lines for one, lines in catalogue(kind, words).items() if lines}
    for one, lines in found.items():
        shown = KINDS[one]()
        console.print(_table(one, shown.label, lines))
        console.print()
        for sentence in shown.registry(one).refused():
            console.print(sentence, style="yellow", markup=False, highlight=False)
    if not found:
        console.print(f"No {kind or 'name'} has {' and '.join(words)} in its line: see 'seepage list'.")


def _table(title: str, label: str, lines: Sequence[Line]) -> Table:
    table = Table(
        title=title.capitalize(), title_justify="left", title_style="bold", box=None, pad_edge=False
    )
    table.add_column("name", style="cyan", no_wrap=True)
    table.add_column("what", ratio=3)
    table.add_column(label, ratio=2, style="dim")
    packages = any("package" in line for line in lines)
    if packages:
        table.add_column("package", style="dim")
    for line in lines:
        cells = [line["name"], line["description"], line.get(label, "")]
        table.add_row(*cells, *([line.get("package", "")] if packages else []))
    return table
