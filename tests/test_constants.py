"""Where a constant says that a test shows its plateau, there is such a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "seepage"
NAMED = re.compile(r"Tested:\s+(test_[a-z0-9_]+)")
CITED = sorted({name for file in SOURCE.rglob("*.py") for name in NAMED.findall(file.read_text("utf-8"))})


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
