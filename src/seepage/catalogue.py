"""Everything that can be named in a spec or on the command line, with one line each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from seepage.attacks import ATTACKS
from seepage.defenses import Described
from seepage.detectors import DETECTORS
from seepage.federation import THREATS
from seepage.guardian import ALL_DEFENSES
from seepage.metrics import METRICS
from seepage.papers import PAPERS
from seepage.workloads.data import DATASETS
from seepage.workloads.models import MODELS

Entry = dict[str, str]


def catalogue() -> dict[str, list[Entry]]:
    """By kind, every entry with its name, what it does and what it requires.

    >>> [entry["name"] for entry in catalogue()["attacks"]][:1]
    ['prior_only']
    """
    return {
        "attacks": [
            _entry(name, _first_paragraph(build), ", ".join(sorted(build().requires)) or "nothing")
            for name, build in ATTACKS.items()
        ],
        "threat models": [
            _entry(t.name, t.description, ", ".join(sorted(t.grants)), "grants") for t in THREATS.values()
        ],
        "defenses": [
            _entry(name, f"{d.description} {_standing(d)}", _settings(d.settings), "settings")
            for name, d in ALL_DEFENSES.items()
        ],
        "detectors": [_entry(name, _first_paragraph(build)) for name, build in DETECTORS.items()],
        "metrics": [_entry(m.name, m.description, m.note) for m in METRICS.values()],
        "models": [
            _entry(name, m.description, ", ".join(sorted(m.modalities)), "data") for name, m in MODELS.items()
        ],
        "datasets": [_entry(name, d.description, d.needs) for name, d in DATASETS.items()],
        "papers": [_entry(name, p.description, p.needs) for name, p in PAPERS.items()],
    }


def _entry(name: str, description: str, requires: str = "", label: str = "requires") -> Entry:
    return {"name": name, "description": description, **({label: requires} if requires else {})}


def _first_paragraph(documented: Callable[..., Any]) -> str:
    return " ".join((inspect.getdoc(documented) or "").split("\n\n")[0].split())


def _standing(defense: Described) -> str:
    where = "Changes the protocol" if defense.runs_at == "protocol" else f"Runs at the {defense.runs_at}"
    return f"{where}, trusts {defense.trusts}; {defense.guarantee}."


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={default}" for name, default in settings.items())


def print_catalogue(console: Console | None = None) -> None:
    """One aligned table a kind."""
    console = console or Console()
    for kind, entries in catalogue().items():
        table = Table(
            title=kind.capitalize(), title_justify="left", title_style="bold", box=None, pad_edge=False
        )
        table.add_column("name", style="cyan", no_wrap=True)
        table.add_column("what", ratio=3)
        label = next((key for e in entries for key in e if key not in {"name", "description"}), "requires")
        table.add_column(label, ratio=2, style="dim")
        for entry in entries:
            table.add_row(entry["name"], entry["description"], entry.get(label, ""))
        if not entries:
            table.add_row("(none yet)", "", "")
        console.print(table)
        console.print()
