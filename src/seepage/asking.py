"""Questions of `seepage init` in a terminal: model, data and batch size, each tried before it is written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import typer

from seepage.core.errors import SeepageError

Ask = Callable[[str, str], str]
"""From a question and what is taken when nothing is answered to the answer."""


def _asked(question: str, usual: str) -> str:
    return str(typer.prompt(question, default=usual))


def fill_in(path: Path, *, study: bool = False, ask: Ask = _asked) -> bool:
    """Ask until the file runs, and write the answers into it; False where the user would rather edit it.

    The file is tried by preparing it: the data are read, the model is built and given an example. No attack
    runs.
    """
    print("A few questions; an empty answer takes what is in brackets, 'later' leaves the file to be edited.")
    while True:
        model = ask("Model: a name, or package.module:function that builds yours", "mlp")
        if model == "later":
            return False
        data = ask("Data: a name, a .csv, .npz or folder, or package.module:function", "digits")
        if data == "later":
            return False
        label = ask("Column of the label", "label") if data.endswith(".csv") else ""
        size = ask("Examples that a client uses in a round", "8")
        path.write_text(filled(path.read_text(encoding="utf-8"), model, data, label, size), encoding="utf-8")
        if (problem := tried(path, study=study)) is None:
            return True
        print(f"This does not run: {problem}")


def filled(text: str, model: str, data: str, label: str, size: str) -> str:
    """The file with the answers in the place of its examples; everything else stays.

    >>> filled('model   = "a"  # or b\\ndata = "c"\\nbatch_size = 32  # n', "mlp", "t.csv", "y", "4")
    'model   = "mlp"\\ndata = {name = "t.csv", label = "y"}\\nbatch_size = 4  # n'
    """
    shown = json.dumps(data) if not label else f"{{name = {json.dumps(data)}, label = {json.dumps(label)}}}"
    for key, value in (("model", json.dumps(model)), ("data", shown)):
        text = re.sub(rf"^({key}\s*=) .*$", lambda m, v=value: f"{m[1]} {v}", text, flags=re.M)  # type: ignore[misc]
    return re.sub(r"^(batch_size\s*=) \S+", lambda m: f"{m[1]} {size}", text, flags=re.M)


def tried(path: Path, *, study: bool = False) -> str | None:
    """What is wrong with the file, in a sentence; None: it runs."""
    from seepage.data import check_name
    from seepage.engine.grid import Grid
    from seepage.engine.points import Points
    from seepage.engine.spec import read_spec
    from seepage.engine.study import read_study

    try:
        if study:
            wanted = read_study(path)
            check_name(wanted.data.name, path.parent)
            Points(wanted.grid()).check()
        else:
            spec = read_spec(path)
            check_name(spec.data.name, path.parent)
            Points(Grid.of_audit(spec)).check()
    except SeepageError as error:
        return str(error)
    return None
