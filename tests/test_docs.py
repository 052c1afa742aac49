"""The documentation builds strictly: no link or anchor to nowhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from seepage.names.attacks import ATTACKS

pytest.importorskip("mkdocs", reason="mkdocs is not installed")
pytest.importorskip("material", reason="mkdocs-material is not installed")
ROOT = Path(__file__).parents[1]


def _build(site: Path, config: Path = ROOT / "mkdocs.yml") -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "-f",
        str(config),
        "-d",
        str(site),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def test_the_site_builds_and_every_attack_has_a_page(tmp_path: Path) -> None:
    made = _build(tmp_path / "site")
    assert made.returncode == 0, made.stderr[-2000:]
    pages = {file.stem for file in (tmp_path / "site" / "attacks").glob("*.html")}
    assert pages == set(ATTACKS)
    text = (tmp_path / "site" / "attacks" / "tag.html").read_text(encoding="utf-8")
    assert "TAG: Gradient Attack on Transformer-based Language Models" in text
    assert "fonts.googleapis" not in text


def test_a_link_to_nowhere_is_noticed(tmp_path: Path) -> None:
    import shutil

    for name in ("docs", "benchmarks"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    page = tmp_path / "docs" / "faq.md"
    page.write_text(page.read_text(encoding="utf-8") + "\n[gone](no-such-page.md)\n", encoding="utf-8")
    made = _build(tmp_path / "site", tmp_path / "mkdocs.yml")
    assert made.returncode != 0
    assert "no-such-page.md" in made.stderr
