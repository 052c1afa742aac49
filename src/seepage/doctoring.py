"""`seepage doctor`: what is installed, what is missing for which use, and whether an audit runs here."""

from __future__ import annotations

import os
import platform
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from seepage import __version__
from seepage.core.errors import SeepageError, in_words

State = Literal["ok", "missing", "wrong"]
_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)")
_EXTRA = re.compile(r"""extra == ["']([\w-]+)["']""")
_FOR_DEVELOPERS = {"dev", "docs"}


@dataclass(frozen=True)
class Finding:
    """One line: `wrong` stops an audit, `missing` only what the line names."""

    what: str
    state: State
    said: str


@dataclass(frozen=True)
class Examined:
    """Everything that was looked at."""

    findings: tuple[Finding, ...]

    @property
    def well(self) -> bool:
        """Whether an audit runs here."""
        return all(one.state != "wrong" for one in self.findings)

    def to_json(self) -> dict[str, Any]:
        return {"well": self.well, "findings": [vars(one) for one in self.findings]}


def examine() -> Examined:
    """Look at everything; the last line is a small audit."""
    needed, extras = _requirements()
    found = [
        Finding("seepage", "ok", f"{__version__} in {Path(__file__).parent}"),
        Finding("Python", "ok", f"{platform.python_version()} on {platform.platform()}"),
        *(_package(name) for name in needed),
        *(_extra(name, packages) for name, packages in sorted(extras.items())),
    ]
    if not any(one.state == "wrong" for one in found):
        found += [_device(), _data_folder(), _runs_folder(), _small_audit()]
    return Examined(tuple(found))


def _requirements() -> tuple[list[str], dict[str, list[str]]]:
    """Of the installed package: what every audit needs, and what each extra adds."""
    try:
        listed = requires("seepage") or []
    except PackageNotFoundError:
        listed = []
    needed: list[str] = []
    extras: dict[str, list[str]] = {}
    for line in listed:
        match, extra = _REQUIREMENT.match(line), _EXTRA.search(line)
        if match is None or match[1] == "seepage":
            continue
        if extra is None:
            needed.append(match[1])
        elif extra[1] not in _FOR_DEVELOPERS:
            extras.setdefault(extra[1], []).append(match[1])
    return needed or ["torch", "numpy", "pydantic"], extras


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _package(name: str) -> Finding:
    there = _version(name)
    return (
        Finding(name, "ok", there) if there else Finding(name, "wrong", f"not installed: pip install {name}")
    )


def _extra(name: str, packages: Iterable[str]) -> Finding:
    lacking = [one for one in packages if _version(one) is None]
    if lacking:
        return Finding(
            f"extra {name}", "missing", f"pip install 'seepage[{name}]' (lacks {', '.join(lacking)})"
        )
    return Finding(f"extra {name}", "ok", ", ".join(f"{one} {_version(one)}" for one in packages))


def _device() -> Finding:
    import torch

    if not torch.cuda.is_available():
        return Finding("device", "ok", f"cpu, {os.cpu_count()} cores; no CUDA device is seen")
    return Finding("device", "ok", f"cuda: {torch.cuda.get_device_name(0)}")


def _data_folder() -> Finding:
    from seepage.data.named import FOLDER_VARIABLE

    named = os.environ.get(FOLDER_VARIABLE)
    if not named:
        said = f"{FOLDER_VARIABLE} is not set: data sets by name that are not built in come from the hub"
        return Finding("data folder", "missing", said)
    if not Path(named).is_dir():
        return Finding("data folder", "missing", f"{FOLDER_VARIABLE} is '{named}', which is no folder")
    inside = sorted(one.name for one in Path(named).iterdir() if not one.name.startswith("."))
    return Finding(
        "data folder", "ok", f"{named}: {', '.join(inside[:12])}{', ...' if len(inside) > 12 else ''}"
    )


def _runs_folder() -> Finding:
    place = Path("seepage-runs") if Path("seepage-runs").is_dir() else Path()
    if os.access(place, os.W_OK):
        return Finding("runs", "ok", "go to ./seepage-runs unless --out says otherwise")
    return Finding(
        "runs", "wrong", f"'{place.resolve()}' cannot be written to: go to another folder, or use --out"
    )


def _small_audit() -> Finding:
    """One digit, one gradient: it is known to come out exactly."""
    from seepage.api import audit

    try:
        with tempfile.TemporaryDirectory() as folder:
            log = audit(
                model="mlp",
                data="seepage:digits",
                attacks=["analytic_extraction"],
                batch_size=1,
                seeds=[0],
                engine="here",
                out=folder,
                on_plan=lambda header: None,
            )
            share = log.scores("analytic_extraction").get("exact")
    except SeepageError as error:
        return Finding("an audit", "wrong", str(error))
    except (OSError, RuntimeError, ImportError) as error:
        return Finding("an audit", "wrong", in_words(error))
    if share != 1.0:
        return Finding(
            "an audit", "wrong", f"ran, but recovered {share} of an example that must come out exactly"
        )
    return Finding("an audit", "ok", "ran, and recovered the example that it must recover")


def print_examined(found: Examined) -> None:
    console = Console()
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    styles = {"ok": "green", "missing": "yellow", "wrong": "bold red"}
    for one in found.findings:
        table.add_row(Text(one.state, style=styles[one.state]), Text(one.what, no_wrap=True), Text(one.said))
    console.print(table)
    console.print(
        "An audit runs here." if found.well else "An audit does not run here: see the lines in red."
    )
