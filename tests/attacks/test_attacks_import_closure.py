"""An attack's imports fit on one screen: what it reaches inside `seepage.attacks`, within functions too.

What a user chooses by name (an inner attack, a reader) is looked up when it is chosen and is not counted.
"""

from __future__ import annotations

import ast
import io
import statistics
import tokenize
from functools import cache
from importlib.util import find_spec, resolve_name
from pathlib import Path

from seepage.names.attacks import ATTACKS

MOST_FILES = 12
MOST_LINES = 1200
ROOM = "seepage.attacks"


@cache
def file_of(module: str) -> Path | None:
    """None for what is no module: a function or class that is imported from one."""
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:  # its parent is no package
        return None
    return None if spec is None or spec.origin is None else Path(spec.origin)


def imported(module: str) -> set[str]:
    """The modules of the room that a module's import statements name, wherever they stand."""
    file = file_of(module)
    assert file is not None
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            home = resolve_name("." * node.level + (node.module or ""), package)
            inner = {f"{home}.{alias.name}" for alias in node.names}
            found |= {one if one.startswith(ROOM) and file_of(one) else home for one in inner}
    return {one for one in found if one == ROOM or one.startswith(f"{ROOM}.")}


def closure(module: str) -> set[str]:
    seen, waiting = {module}, [module]
    while waiting:
        new = imported(waiting.pop()) - seen
        seen |= new
        waiting += new
    return seen


@cache
def code_lines(module: str) -> int:
    """Lines that hold code: neither blank, comment nor docstring."""
    file = file_of(module)
    assert file is not None
    text = file.read_text()
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            docstrings |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped | {tokenize.ENDMARKER}:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def test_the_median_attack_reaches_few_files_and_lines() -> None:
    reached = {name: closure(entry.where.partition(":")[0]) for name, entry in ATTACKS.items()}
    files = {name: len(modules) for name, modules in reached.items()}
    lines = {name: sum(code_lines(module) for module in modules) for name, modules in reached.items()}
    assert statistics.median(files.values()) <= MOST_FILES, files
    assert statistics.median(lines.values()) <= MOST_LINES, lines


def test_no_attack_but_the_registry_knows_all_of_them() -> None:
    """An attack that reached every other one would be reached by nothing less than half of the room."""
    everything = {entry.where.partition(":")[0] for entry in ATTACKS.values()}
    for name, entry in ATTACKS.items():
        assert len(closure(entry.where.partition(":")[0]) & everything) <= 2, name


def test_the_walk_follows_imports_inside_of_functions_and_relative_ones(tmp_path: Path) -> None:
    assert f"{ROOM}.base" in imported(f"{ROOM}.prior_only")
    assert imported(ROOM) == {f"{ROOM}.base"}  # the registry holds names, not attacks
    reader = closure(f"{ROOM}.reading.exact_extraction")
    assert f"{ROOM}.reading.peeling.span" in reader and f"{ROOM}.traps.imprint" not in reader
