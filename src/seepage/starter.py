"""Where newcomers begin: the demonstration (`seepage audit` without a file) and the files `init` writes.

The texts lie in `starts`, with {name} and {stem} in the place of the audit file's name. The examples are
small deployments that run as they are, without a download; the notes of a clinic are made up, nobody's.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path, PurePath

from seepage.core.errors import SpecError
from seepage.core.registry import unknown

FOLDER = Path(__file__).parent / "starts"
DEMO = FOLDER / "demo.toml"
EXAMPLES = ("text", "table")


def starting_files(name: str, study: bool = False, example: str | None = None) -> dict[str, str]:
    """What `seepage init` writes, by file name.

    >>> list(starting_files("mine.toml")), list(starting_files("mine.toml", example="table"))
    (['mine.toml'], ['mine.toml', 'mine_patients.csv'])
    """
    if example is None:
        return {name: _text("study.toml" if study else "audit.toml", name)}
    if study:
        raise SpecError("--example writes an audit: leave out --study, or fill in a study's file by hand.")
    if example not in EXAMPLES:
        raise SpecError(unknown("example", example, EXAMPLES))
    stem = PurePath(name).stem
    files = {name: _text(f"{example}.toml", name)}
    if example == "table":
        return {**files, f"{stem}_patients.csv": _patients()}
    if not stem.isidentifier():
        raise SpecError(f"'{name}' names a Python file as well: use letters, digits and _ only.")
    beside = {f"{stem}_model.py": "text_model.py.txt", f"{stem}_notes.jsonl": "text_notes.jsonl"}
    return {**files, **{file: _text(source, name) for file, source in beside.items()}}


def _text(source: str, name: str) -> str:
    text = (FOLDER / source).read_text(encoding="utf-8")
    return text.replace("{name}", name).replace("{stem}", PurePath(name).stem)


def _patients() -> str:
    """The diabetes study of Efron et al. (2004), which scikit-learn ships, as a CSV.

    Its columns are as measured; whether the disease went further in a year than the median is the label.
    """
    from sklearn.datasets import load_diabetes

    study = load_diabetes(scaled=False)
    middle = sorted(study.target)[len(study.target) // 2]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*study.feature_names, "progression"])
    for row, target in zip(study.data, study.target, strict=True):
        writer.writerow([*(f"{value:g}" for value in row), "fast" if target >= middle else "slow"])
    return out.getvalue()
