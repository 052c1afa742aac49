from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr")
EXAMPLE = Path(__file__).parents[3] / "examples" / "flower"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The example app, importable."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLE))
    yield EXAMPLE
    for name in [name for name in sys.modules if name.split(".")[0] == "digits_app"]:
        del sys.modules[name]
