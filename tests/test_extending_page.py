"""The examples of docs/extending.md, copied into a file of one's own, pass the checks that the page names."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "docs" / "extending.md"


def test_the_examples_of_the_page_hold_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 5  # attack, defense, metric, detector, checks
    (tmp_path / "from_the_page.py").write_text("\n".join(blocks), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    try:
        importlib.import_module("from_the_page").test_my_own()
    finally:
        sys.modules.pop("from_the_page", None)
