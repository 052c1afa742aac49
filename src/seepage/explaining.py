"""What can be said of one name: what it does and needs, its settings, its papers and where its figures are.

It is read off the lists in `names` and off the sources, without importing them: the pages of the
documentation and `seepage explain` say the same.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from seepage.catalogue import KINDS
from seepage.core.errors import SpecError
from seepage.core.registry import Entry
from seepage.core.unloaded import Written, read_written
from seepage.names.metrics import METRICS
from seepage.names.papers import cited
from seepage.names.tables import tables_with
from seepage.names.threats import GRANTS, THREATS


@dataclass(frozen=True, kw_only=True)
class Explained:
    """One name of one kind."""

    kind: str
    """attacks, defenses, metrics, ..."""
    name: str
    summary: str
    about: tuple[str, ...]
    """Paragraphs on how it works."""
    needs: tuple[tuple[str, str], ...]
    """What it needs or is, each with a heading."""
    settings: dict[str, str]
    """With their defaults, as they are written."""
    papers: dict[str, str]
    """As cited, with the title where it is known."""
    tables: dict[str, str]
    """Published tables that it is part of: `seepage reproduce NAME` regenerates its figures."""
    where: str

    @property
    def command(self) -> str:
        """How to try it."""
        return _TRY.get(self.kind, "").format(name=self.name)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


_TRY = {
    "attacks": 'attacks = ["{name}"] in an audit file',
    "defenses": "seepage audit audit.toml --with {name}",
    "metrics": 'fail_on = {{{name} = ...}} in an audit file, or metrics = ["{name}"] where it is on request',
    "threats": 'threat = "{name}" in an audit file',
    "models": 'model = "{name}" in an audit file',
    "data": 'data = "{name}" in an audit file',
    "tables": "seepage reproduce {name}",
    "detectors": "seepage guard weights.safetensors",
}


def explain(name: str) -> list[Explained]:
    """Everything of this name; several kinds may have one. Raises SpecError with the nearest names.

    >>> [one.kind for one in explain("tag")], "Deng et al. 2021" in explain("tag")[0].papers
    (['attacks'], True)
    >>> explain("trap_weight")
    Traceback (most recent call last):
    ...
    seepage.core.errors.SpecError: nothing is called 'trap_weight': did you mean 'trap_weights'? 'seepage \
list' shows every name.
    """
    entries = {kind: made().registry().entries() for kind, made in KINDS.items()}
    found = [explained(kind, name) for kind in KINDS if name in entries[kind]]
    if found:
        return found
    names = [known for of_kind in entries.values() for known in of_kind]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    near = near or [known for known in names if name.lower() in known.lower()][:3]
    hint = f"did you mean {' or '.join(repr(one) for one in near)}? " if near else ""
    raise SpecError(f"nothing is called '{name}': {hint}'seepage list' shows every name.")


def explained(kind: str, name: str) -> Explained:
    """One that is known to be there."""
    entry = KINDS[kind]().registry().entries()[name]
    # threat models and tables are data: their code says nothing about one of them
    source = Written() if kind in {"threats", "tables"} else read_written(entry.where)
    first, *rest = source.paragraphs or ("",)
    about = (*source.module, *rest) if not entry.description else (*source.module, *source.paragraphs)
    summary = entry.description or first
    return Explained(
        kind=kind,
        name=name,
        summary=summary,
        about=tuple(text for text in dict.fromkeys(about) if text and text != summary),
        needs=tuple(_needs(kind, name, entry)),
        settings=source.settings,
        papers={} if kind == "tables" else cited(" ".join((*source.module, *source.paragraphs, summary))),
        tables=tables_with(name) if kind in {"attacks", "defenses"} else {},
        where=entry.where,
    )


def _needs(kind: str, name: str, entry: Entry) -> Iterator[tuple[str, str]]:
    """By kind, what its list knows."""
    facts = entry.facts
    if entry.package:
        yield "Package", entry.package
    if kind == "attacks" and not entry.package:
        wanted = facts.get("requires", ())
        yield (
            "Needs of the threat model",
            "; ".join(GRANTS.get(one, one) for one in wanted) or "nothing but the update",
        )
        fits = [name for name, one in THREATS.items() if set(wanted) <= set(one.facts["grants"])]
        yield (
            "Threat models that grant it",
            ", ".join(fits) or "none by itself: grant it in a threat of your own",
        )
    elif kind == "defenses":
        usual = {"runs_at": "client", "trusts": "nobody", "guarantee": "heuristic", **facts}
        yield "Runs at", str(usual["runs_at"])
        yield "Trusts", str(usual["trusts"])
        yield "Guarantee", str(usual["guarantee"])
        if usual.get("adaptive"):
            yield "What an attacker who knows it does", str(usual["adaptive"])
    elif kind == "metrics" and name in METRICS:
        metric = METRICS[name]
        yield "In everyday words", metric.plain
        yield "How to read it", metric.scale
        yield "More leaks where it is", "higher" if metric.higher_leaks else "lower"
        yield "Data", ", ".join(metric.modalities)
        yield "Measured on", "each example" if metric.level == "example" else "a batch as a whole"
    elif kind == "threats":
        yield "Grants", "; ".join(GRANTS.get(one, one) for one in facts.get("grants", ()))
        yield "Rounds", str(facts.get("rounds", 1))
    else:
        for key, value in facts.items():
            shown = value if isinstance(value, str) else ", ".join(map(str, value)) if value else ""
            if shown:
                yield key.replace("_", " ").capitalize(), shown


def print_explained(found: Explained) -> None:
    """Plain text that survives a pipe."""
    console = Console()
    kind = {"data": "data set"}.get(found.kind, found.kind.removesuffix("s"))
    console.print(Text(f"{found.name} ({kind})", style="bold"))
    console.print(Text(found.summary))
    for text in found.about:
        console.print()
        console.print(Text(text))
    console.print()
    for heading, text in found.needs:
        console.print(Text(f"{heading}: ", style="bold") + Text(text))
    _listed(console, "Settings and their defaults", found.settings, " = ")
    _listed(console, "Papers", found.papers, ": ")
    _listed(console, "Figures, beside the papers' (seepage reproduce NAME)", found.tables, ": ")
    if found.command:
        console.print(Text("Try it: ", style="bold") + Text(found.command))
    console.print(Text(f"Source: {found.where}", style="dim"))


def _listed(console: Console, heading: str, lines: dict[str, str], between: str) -> None:
    if not lines:
        return
    console.print(Text(f"{heading}:", style="bold"))
    for name, value in lines.items():
        console.print(Padding(Text(f"{name}{between}{value}" if value else name), (0, 0, 0, 2)))
