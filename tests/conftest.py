"""Shared by all tests: no run may write outside its temporary folder, and real data are optional."""

from __future__ import annotations

import os

import pytest

# before torch is imported: two workers with two spinning threads each take five times as long
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@pytest.fixture(autouse=True)
def _in_temporary_folder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Audits write to ./seepage-runs by default: keep that out of the checkout."""
    if "tmp_path" in request.fixturenames:
        monkeypatch.chdir(request.getfixturevalue("tmp_path"))
