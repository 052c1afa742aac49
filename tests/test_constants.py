"""Where a constant says that a test shows its plateau, there is such a test."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "seepage"
NAMED = re.compile(r"Tested:\s+(test_[a-z0-9_]+)")
CITED = sorted({name for file in SOURCE.rglob("*.py") for name in NAMED.findall(file.read_text("utf-8"))})

MARKS = re.compile(r"(Paper|Derived|Cost|Tested|A choice):|No plateau test yet\.")
ROOMS = ("attacks", "gating", "guardian", "labels", "metrics", "models", "protocol")
"""Whose constants all say where they come from."""


@pytest.fixture(scope="module")
def defined() -> set[str]:
    return {
        name
        for file in TESTS.rglob("test_*.py")
        for name in re.findall(r"^def (test_[a-z0-9_]+)", file.read_text("utf-8"), flags=re.M)
    }


@pytest.mark.parametrize("name", CITED)
def test_a_test_that_a_constant_names_exists(name: str, defined: set[str]) -> None:
    assert name in defined


def numbers(file: Path) -> Iterator[tuple[str, str]]:
    """Module constants with a number in them, each with the text below it."""
    body = ast.parse(file.read_text("utf-8")).body
    for node, after in zip(body, [*body, None][1:], strict=True):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]
        values = [one.value for one in ast.walk(node.value) if isinstance(one, ast.Constant)]
        if all(map(str.isupper, names)) and any(type(value) in (int, float) for value in values):
            said = after.value if isinstance(after, ast.Expr) else None
            words = str(said.value) if isinstance(said, ast.Constant) else ""
            yield ", ".join(names), " ".join(words.split())


@pytest.mark.parametrize("room", ROOMS)
def test_constants_of_a_room_say_where_they_come_from(room: str) -> None:
    found = {(file, *one) for file in (SOURCE / room).rglob("*.py") for one in numbers(file)}
    assert len(found) > 5
    assert [
        f"{file.relative_to(SOURCE)}: {name}" for file, name, said in found if not MARKS.search(said)
    ] == []
