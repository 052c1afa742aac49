"""Source files: whose they are, what they say without comments and layout, and what they import."""

from __future__ import annotations

import ast
import hashlib
import re
import site
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType

from seepage.core.unloaded import find_spec

OURS = "seepage"


@dataclass(frozen=True)
class Source:
    """One parsed file."""

    digest: str
    """Of the syntax tree: comments and layout do not count."""
    imports: tuple[tuple[str, tuple[str, ...]], ...]
    """Absolute names of modules, each with the names taken from it (none for a plain `import`)."""
    code: CodeType | None
    """None for what is no Python source: a compiled extension."""


@lru_cache(maxsize=1024)
def parse(text: bytes, module: str, is_package: bool) -> Source:
    """A file's content; of what does not parse, a compiled extension for one, every byte counts.

    >>> one, other = parse(b"import a.b  # why", "m", False), parse(b"import a.b", "m", False)
    >>> one.digest == other.digest, one.imports
    (True, (('a.b', ()),))
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return Source(hashlib.sha256(text).hexdigest(), (), None)
    return Source(
        digest=hashlib.sha256(ast.dump(tree).encode("utf-8", "surrogatepass")).hexdigest(),
        imports=(*_imports(tree, module, is_package), *_named(tree)),
        code=compile(tree, module, "exec", dont_inherit=True),
    )


def _imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Also those inside functions; not those for type checkers only."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = module.split(".") if is_package else module.split(".")[:-1]
            above = parts[: len(parts) - node.level + 1] if node.level else []
            name = ".".join([*above, *([node.module] if node.module else [])])
            if name:
                yield name, tuple(alias.name for alias in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for other in node.orelse:
                yield from _imports(ast.Module([other], []), module, is_package)
        else:
            yield from _imports(node, module, is_package)


_OF_OURS = re.compile(rf"{OURS}(\.\w+)+:\w+")


def _named(tree: ast.AST) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What a registry of ours imports when it is asked for: it is written "seepage.module:thing" there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _OF_OURS.fullmatch(node.value):
            yield node.value.partition(":")[0], ()


def file_of(module: str) -> Path | None:
    """The file of a module, loaded or not; None for what is built in or not to be found."""
    loaded = sys.modules.get(module)
    origin = getattr(loaded, "__file__", None)
    if loaded is None:
        spec = find_spec(module)
        origin = spec.origin if spec is not None else None
    return Path(origin) if origin is not None and Path(origin).is_file() else None


_INSTALLED = frozenset({"site-packages", "dist-packages"})
"""What folders of installed packages are called."""


def is_own(module: str, file: Path | None) -> bool:
    """The user's or seepage's: neither the standard library's nor an installed package's."""
    top = module.partition(".")[0]
    if top == OURS:
        return True
    if file is None or top in sys.stdlib_module_names:
        return False
    if _INSTALLED.intersection(file.parts):  # of another environment, put on the path
        return False
    return not any(file.resolve().is_relative_to(folder) for folder in _installed())


@lru_cache(maxsize=1)
def _installed() -> tuple[Path, ...]:
    paths = [sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    return tuple({Path(p).resolve() for p in (*paths, *site.getsitepackages(), site.getusersitepackages())})
