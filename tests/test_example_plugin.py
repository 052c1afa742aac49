"""The example package, installed as a user installs it: its names work in TOML, with seepage as it is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

PLUGIN = Path(__file__).parents[1] / "examples" / "seepage_plugin"
Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A command in a folder of the user's, with the package installed beside seepage."""
    source, site, user = (tmp_path_factory.mktemp(name) for name in ("source", "site", "user"))
    shutil.copytree(PLUGIN, source / "plugin")  # a build leaves files behind
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([sys.executable, *install, "--target", site, source / "plugin"], check=True)
    shutil.copy(PLUGIN / "audit.toml", user)
    path = os.pathsep.join([str(site), *(str(Path(entry).resolve()) for entry in sys.path if entry)])

    def command(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=user,
            env={**os.environ, "PYTHONPATH": path, "COLUMNS": "200"},
            capture_output=True,
            text=True,
            check=False,
        )

    return command


def test_its_names_are_listed_with_the_package_and_without_importing_it(run: Run) -> None:
    shown = run(["-m", "seepage", "list", "attacks", "largest"])
    assert "largest_row" in shown.stdout and "seepage-plugin 0.1.0" in shown.stdout, shown.stderr
    assert "Reads one picture from each update" in " ".join(shown.stdout.split())
    found = json.loads(run(["-m", "seepage", "list", "defenses", "round_off", "--json"]).stdout)
    (line,) = found["defenses"]
    assert line["package"] == "seepage-plugin 0.1.0" and line["settings"] == "digits=2"


def test_an_audit_names_the_attack_the_defense_and_the_metric(run: Run) -> None:
    done = run(["-m", "seepage", "audit", "audit.toml", "--out", "run", "--json"])
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    text = json.dumps(found)
    assert "largest_row" in text and "round_off" in text and "brightness_error" in text
    page = Path(
        run(["-c", f"from pathlib import Path; print(Path({found['report']!r}).resolve())"]).stdout.strip()
    )
    report = page.read_text(encoding="utf-8")
    assert "Brightness error" in report and "largest_row" in report
    cell = json.loads((page.parent / "cells" / "largest_row-seed0.json").read_text())
    assert cell["status"] == "done" and cell["examples"][0]["scores"]["brightness_error"] < 0.05
    assert any("never held the data" in said for said in cell["knowledge"])


def test_an_unknown_name_is_answered_with_the_nearest_of_the_package(run: Run) -> None:
    text = (PLUGIN / "audit.toml").read_text().replace("largest_row", "largest_rwo")
    run(["-c", f"open('typo.toml', 'w').write({text!r})"])
    done = run(["-m", "seepage", "audit", "typo.toml"])
    assert done.returncode == 2 and "did you mean 'largest_row'?" in done.stderr


def test_it_passes_the_checks_and_the_cheat_fails_them(run: Run) -> None:
    done = run(["-m", "pytest", "-q", "-p", "no:cacheprovider", str(PLUGIN / "test_plugin.py")])
    assert done.returncode == 0 and done.stdout.split()[0] == "....", done.stdout
