"""What a process that is locked in may read."""

from __future__ import annotations

from pathlib import Path

from seepage.engine.isolation.confine import _libraries


def test_packages_of_stacked_environments_are_libraries_and_a_user_s_folders_are_not(tmp_path: Path) -> None:
    packages = tmp_path / "base" / "lib" / "site-packages"
    found = _libraries([str(packages), str(tmp_path), ""])
    assert packages in found and tmp_path not in found
