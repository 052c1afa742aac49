"""Shared by all tests: no run may write outside its temporary folder, and real data are optional."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _in_temporary_folder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Audits write to ./seepage-runs by default: keep that out of the checkout."""
    if "tmp_path" in request.fixturenames:
        monkeypatch.chdir(request.getfixturevalue("tmp_path"))
