"""What can be said of a module without importing it: where its file is, and what its source says."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path

_FILLED_IN = frozenset({"deployment"})
"""Parameters of a registry's thing that the audit sets, not the user."""


def find_spec(module: str) -> ModuleSpec | None:
    """Where a module would be imported from. Nothing is imported: not its parents either.

    >>> find_spec("seepage.attacks.prior_only").name
    'seepage.attacks.prior_only'
    """
    path: Sequence[str] | None = None
    spec: ModuleSpec | None = None
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        name = ".".join(parts[:end])
        finders = [getattr(finder, "find_spec", None) for finder in sys.meta_path]
        specs = (find(name, path, None) for find in finders if find is not None)
        spec = next((found for found in specs if found is not None), None)
        if spec is None:
            return None
        path = spec.submodule_search_locations
        if path is None and end < len(parts):
            return None
    return spec


def written(where: str) -> tuple[str, dict[str, str]]:
    """Of "package.module:thing": the first paragraph of its docstring, and its settings with their defaults.

    Nothing where the source cannot be read or defines the thing in another way than by `def` or `class`.

    >>> written("seepage.defenses.clipping:clipping")[1]
    {'norm': '1.0'}
    """
    module, _, name = where.partition(":")
    for node in _definitions(module):
        if node.name == name:
            text = inspect.cleandoc(ast.get_docstring(node) or "").split("\n\n")[0]
            return " ".join(text.split()), _settings(node)
    return "", {}


_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _definitions(module: str) -> Iterator[_Definition]:
    try:
        spec = find_spec(module)
        source = Path(spec.origin).read_bytes() if spec is not None and spec.origin else b""
        yield from (node for node in ast.parse(source).body if isinstance(node, _Definition))
    except (OSError, SyntaxError, ValueError, ImportError):  # a broken package: its name is all there is
        return


def _settings(node: _Definition) -> dict[str, str]:
    """Keyword-only parameters: settings are that everywhere. Of a class, all but `self`: other packages name
    theirs by position too."""
    if isinstance(node, ast.ClassDef):
        makers = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
        return {**_by_position(makers[0].args), **_settings(makers[0])} if makers else {}
    pairs = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    shown = {one.arg: "" if default is None else ast.unparse(default) for one, default in pairs}
    return {name: default for name, default in shown.items() if name not in _FILLED_IN}


def _by_position(arguments: ast.arguments) -> dict[str, str]:
    names = [one.arg for one in (*arguments.posonlyargs, *arguments.args)][1:]
    defaults = [ast.unparse(one) for one in arguments.defaults][-len(names) :] if names else []
    return dict(zip(names, [""] * (len(names) - len(defaults)) + defaults, strict=True))
