"""What of the site is made, not written: the facts of each attack and defense, and lists of the rest.

They say what `seepage explain` says; equations come from docs/equations.md, figures and their numbers from
docs/figures.py. `<!-- made: threats -->` in a written page is replaced by what is made. A link that leaves
docs/ for a file of the repository becomes its name, for the site stands alone; where there is no such file,
the build fails. Equations (```math) become MathML, which browsers show without a script.
"""

from __future__ import annotations

import ast
import inspect
import json
import logging
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File

import seepage
from seepage.catalogue import catalogue
from seepage.explaining import Explained, explained

ROOT = Path(__file__).parents[1]
LOG = logging.getLogger("mkdocs.hooks.site")
EQUATION = re.compile(r"^```math\n(.*?)\n```$", re.MULTILINE | re.DOTALL)
MADE = re.compile(r"<!-- made: (\w+) -->")
OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+([^)#]+)(?:#[^)]*)?\)")


def _sections(file: Path) -> dict[str, str]:
    parts = re.split(r"^## (\w+)\n", file.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    links = (
        (name, re.sub(r"\]\((?=[\w-]+\.md)", "](../", text))
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    )
    return {name: text.strip() for name, text in links}


EQUATIONS = _sections(ROOT / "docs" / "equations.md")
FIGURES = json.loads((ROOT / "docs" / "attacks" / "figures.json").read_text(encoding="utf-8"))


def on_files(files: Any, config: Any) -> Any:
    """Add what is made to what is written."""
    for name, text in pages().items():
        if not files.get_file_from_path(f"{name}.md"):
            files.append(File.generated(config, f"{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Add what is made; files of the repository by name, or a warning (which fails) where one is missing."""
    markdown = MADE.sub(lambda match: _PARTS[match[1]](), markdown)
    markdown = EQUATION.sub(lambda match: convert(match[1], display="block"), markdown)

    def named(match: re.Match[str]) -> str:
        if "/" in page.file.src_uri and (ROOT / "docs" / match[2]).exists():
            return match[0]  # from a page in a folder to one beside it
        if not (ROOT / match[2]).exists():
            LOG.warning("%s links to '%s', which is not in the repository", page.file.src_uri, match[2])
        return f"`{match[2]}`"

    return OUTSIDE.sub(named, markdown)


def pages() -> dict[str, str]:
    """By their place in the site, without the ending."""
    found = {
        "metrics": "# Metrics\n\nWhat stands in a report, and how to read it.\n\n" + _whole("metrics"),
        "benchmarks": _benchmarks(),
        "api": _python(),
    }
    for kind, folder in (("attacks", "attacks"), ("defenses", "defenses")):
        for one in _all(kind):
            found[f"{folder}/{_file(one.name)}"] = "\n\n".join(_page(one, level=1)) + "\n"
    return found


def _all(kind: str) -> list[Explained]:
    return [explained(kind, line["name"]) for line in catalogue(kind)[kind] if "package" not in line]


def _file(name: str) -> str:
    return name.replace(":", "-")


def _list(kind: str) -> str:
    rows = [f"| [`{one.name}`]({kind}/{_file(one.name)}.md) | {_cell(one.summary)} |" for one in _all(kind)]
    return "| name | what |\n|---|---|\n" + "\n".join(rows) + "\n"


def _whole(kind: str) -> str:
    return "\n\n".join(part for one in _all(kind) for part in _page(one, level=2)) + "\n"


def _page(one: Explained, *, level: int) -> Iterator[str]:
    yield f"{'#' * level} {one.name}"
    yield _text(one.summary)
    yield from (_text(text) for text in one.about)
    yield from _facts(one, level=level)


def _facts(one: Explained, *, level: int) -> Iterator[str]:
    if one.name in EQUATIONS:
        yield f"{'#' * (level + 1)} In equations"
        yield EQUATIONS[one.name]
    if one.name in FIGURES and one.kind == "attacks":
        yield f"{'#' * (level + 1)} What it looks like"
        yield from _figure(one.name, FIGURES[one.name])
    if one.needs:
        yield _table(("", ""), ((f"**{name}**", text) for name, text in one.needs))
    if one.settings and one.kind != "metrics":
        yield f"{'#' * (level + 1)} Settings of {one.name}"
        yield _table(
            ("setting", "default"), ((f"`{n}`", f"`{v}`" if v else "") for n, v in one.settings.items())
        )
    if one.kind == "attacks" and (rows := list(_measured(one.name))):
        yield f"{'#' * (level + 1)} Measured"
        yield (
            "On built-in data, seeds 0 and 1 (`benchmarks/figures.py`, where searches take 20 steps only: "
            "those figures are for noticing changes, not for judging a search)."
        )
        yield _table(("setting", "exact", "claims right", "mean score"), rows)
    if one.tables:
        yield f"{'#' * (level + 1)} Figures beside the papers'"
        yield _table(("command", "what"), ((f"`seepage reproduce {n}`", t) for n, t in one.tables.items()))
    if one.papers:
        yield f"{'#' * (level + 1)} Papers"
        yield "\n".join(f"- {name}{': ' + title if title else ''}" for name, title in one.papers.items())
    yield f"Try it: `{one.command}`" if one.command else ""


def _figure(name: str, found: dict[str, Any]) -> Iterator[str]:
    """The picture or the words that came out in one small audit, and its numbers."""
    if (ROOT / "docs" / "attacks" / f"{name}.png").exists():
        yield f"![Originals above what {name} rebuilt: {found['setting']}]({name}.png)"
    if found.get("quoted"):
        yield "```text\n" + "\n".join(found["quoted"]) + "\n```"
    right, made = found["claims"]
    claims = f"; {right} of {made} claims right" if made else ""
    score = f"; mean {found['score']} {found['value']:.3g}" if found["value"] is not None else ""
    guess = f" (the best guess {found['guess']:.3g})" if found["guess"] is not None else ""
    exact = f"{found['exact']} of {found['examples']} exact"
    yield f"Setting: {found['setting']}, seed 95018 (`docs/figures.py`): {exact}{claims}{score}{guess}."


def _measured(name: str) -> Iterator[tuple[str, str, str, str]]:
    known = json.loads((ROOT / "benchmarks" / "figures.json").read_text(encoding="utf-8"))
    settings: dict[str, dict[str, Any]] = {}
    for key, value in known.items():
        setting, _, rest = key.partition(": ")
        attack, _, what = rest.rpartition(", ")
        if attack.partition("(")[0] == name:
            settings.setdefault(setting, {})[what] = value
    for setting, found in settings.items():
        if found.get("status") == "done":
            means = {what: value for what, value in found.items() if what.startswith("mean ")}
            main = next((m for m in ("mean psnr", "mean token_accuracy", "mean rmse") if m in means), "")
            score = f"{main.removeprefix('mean ')} {means[main]:.3g}" if main else ""
            yield (
                setting,
                str(found.get("exact", "")),
                f"{found.get('claims_right')} of {found.get('claims')}",
                score,
            )


def _tables() -> str:
    rows = [
        (f"`{line['name']}`", line["description"], line.get("requires", ""))
        for line in catalogue("tables")["tables"]
    ]
    return _table(("name", "what", "needs"), rows)


_PARTS = {
    "attacks": lambda: _list("attacks"),
    "defenses": lambda: _list("defenses"),
    "tables": _tables,
    "threats": lambda: _whole("threats"),
}


def _benchmarks() -> str:
    said = "Ratios and counts measured side by side in one run, each by a script of `benchmarks/`."
    parts = ["# Benchmarks", said]
    for file in sorted((ROOT / "benchmarks").glob("*.py")):
        text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        parts += [f"## {file.name}", text]
    return "\n\n".join(parts) + "\n"


def _python() -> str:
    """Every public name, with its signature and its docstring."""
    parts = ["# Python", "Everything public is `seepage.NAME`; names are imported when they are first used."]
    for name in sorted(seepage.__all__, key=str.lower):
        thing = getattr(seepage, name)
        if callable(thing):
            parts += [f"## seepage.{name}", *_described(name, thing)]
            own = vars(thing) if inspect.isclass(thing) else {}
            for method, function in own.items():
                if inspect.isfunction(function) and not method.startswith("_") and function.__doc__:
                    parts += [f"### {name}.{method}", *_described(method, function)]
    return "\n\n".join(parts) + "\n"


def _described(name: str, thing: Any) -> Iterator[str]:
    yield f"```python\n{name}{_signature(thing)}\n```"
    for paragraph in (inspect.getdoc(thing) or "").split("\n\n"):
        example = paragraph.lstrip().startswith(">>>")
        yield f"```pycon\n{paragraph}\n```" if example else _text(paragraph)


def _signature(thing: Any) -> str:
    """One parameter a line where it is long."""
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    text = str(found).replace("'", "")
    if len(text) < 80:
        return text
    ends = f" -> {found.return_annotation}" if found.return_annotation is not found.empty else ""
    return "(\n" + "".join(f"    {one},\n" for one in found.parameters.values()) + f"){ends}".replace("'", "")


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    return "\n".join([*lines, *(f"| {' | '.join(_cell(value) for value in row)} |" for row in rows)])


def _cell(text: str) -> str:
    """A table's cell: no line breaks, no bars."""
    return _text(" ".join(text.split())).replace("|", "\\|")


def _text(text: str) -> str:
    """As it was written for a terminal: brackets and signs of a docstring are no links and no tags."""
    return text.replace("<", "&lt;").replace("[", "\\[").replace("]", "\\]")
