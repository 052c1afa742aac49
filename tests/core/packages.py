"""Packages as an installer leaves them: modules, and a record with entry points. Nothing is built."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def installed(
    folder: Path, name: str, *, modules: Mapping[str, str], offers: Mapping[str, Mapping[str, str]]
) -> None:
    """offers: by group, names with the things behind them."""
    for module, code in modules.items():
        (folder / f"{module}.py").write_text(code)
    record = folder / f"{name}-1.0.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = []
    for group, names in offers.items():
        lines += [f"[{group}]", *(f"{key} = {where}" for key, where in names.items())]
    (record / "entry_points.txt").write_text("\n".join(lines) + "\n")
