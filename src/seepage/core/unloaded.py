"""What can be said of a module without importing it: where its file is, and what its source says."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
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
    found = read_written(where)
    return (found.paragraphs[0] if found.paragraphs else ""), found.settings


@dataclass(frozen=True)
class Written:
    """What the source says of one thing: its docstring by paragraphs, settings, its module's docstring."""

    paragraphs: tuple[str, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)
    module: tuple[str, ...] = ()


def read_written(where: str) -> Written:
    """All of it, as far as the source can be read; examples are left out.

    >>> read_written("seepage.attacks.inversion.tag:tag").module[0][:3]
    'TAG'
    """
    module, _, name = where.partition(":")
    tree = _tree(module)
    about = _paragraphs(ast.get_docstring(tree) or "")
    for node in (one for one in tree.body if isinstance(one, _Definition)):
        if node.name == name:
            return Written(_paragraphs(ast.get_docstring(node) or ""), _settings(node), about)
    return Written(module=about)


def _paragraphs(text: str) -> tuple[str, ...]:
    parts = [" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n")]
    return tuple(part for part in parts if part and not part.startswith(">>>"))


_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _tree(module: str) -> ast.Module:
    try:
        spec = find_spec(module)
        source = Path(spec.origin).read_bytes() if spec is not None and spec.origin else b""
        return ast.parse(source)
    except (OSError, SyntaxError, ValueError, ImportError):  # a broken package: its name is all there is
        return ast.Module(body=[], type_ignores=[])


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
