"""What an audit found, in files that other tools read: beside the page, by `--format`.

    junit.xml     a test case for the gate and for each attack: GitLab, Jenkins, GitHub
    sarif         findings of a static-analysis tool (SARIF 2.1.0): GitHub code scanning, Azure DevOps
    markdown      a summary for a pull request
    json          verdict and figures for programs (docs/report.schema.json)
    csv           one line for each private example and attack
    annex         an annex to a data-protection impact assessment (Markdown)

None of them reads as a pass where nothing was measured.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

from seepage.core.errors import SpecError
from seepage.core.registry import unknown
from seepage.record import AuditLog, write_atomically
from seepage.report.evidence.annex import annex_text
from seepage.report.evidence.examples import csv_text
from seepage.report.evidence.findings import Evidence
from seepage.report.evidence.junit import junit_text
from seepage.report.evidence.markdown import markdown_text
from seepage.report.evidence.sarif import sarif_text
from seepage.report.terminal import to_json

FORMATS: dict[str, tuple[str, Callable[[Evidence], str]]] = {
    "junit": ("junit.xml", junit_text),
    "sarif": ("report.sarif", sarif_text),
    "markdown": ("summary.md", markdown_text),
    "json": ("report.json", lambda found: json.dumps(to_json(found.log), indent=2) + "\n"),
    "csv": ("examples.csv", csv_text),
    "annex": ("annex.md", annex_text),
}
"""By name: the file in the run's folder, and what writes it."""


def check_formats(names: Iterable[str]) -> None:
    """Before anything runs.

    >>> check_formats(["juni"])
    Traceback (most recent call last):
    ...
    seepage.core.errors.SpecError: unknown format 'juni': did you mean 'junit'? Valid: annex, csv, json, \
junit, markdown, sarif.
    """
    for name in names:
        if name not in FORMATS:
            raise SpecError(unknown("format", name, FORMATS))


def write_formats(log: AuditLog, names: Iterable[str], *, about: str = "") -> list[Path]:
    """Into the folder of the run; `about` is the file that findings are shown at, the audit's own."""
    found = Evidence.of(log, about=about)
    written = []
    for name in dict.fromkeys(names):
        file, text = FORMATS[name]
        path = log.folder.path / file
        write_atomically(path, text(found).encode())
        written.append(path)
    return written


__all__ = ["FORMATS", "Evidence", "check_formats", "write_formats"]
