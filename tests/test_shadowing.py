"""A module's name means the module: no package gives it to a function or a class."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

import pytest

import seepage

PACKAGES = [
    "seepage",
    *(found.name for found in pkgutil.walk_packages(seepage.__path__, "seepage.") if found.ispkg),
]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_function_hides_a_module_of_its_package(package: str) -> None:
    inside = importlib.import_module(package)
    parts = [found.name for found in pkgutil.iter_modules(inside.__path__)]
    assert [n for n in parts if not isinstance(getattr(inside, n, inside), ModuleType)] == []
