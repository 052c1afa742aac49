"""The documentation builds strictly: no link or anchor to nowhere."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from seepage.names.attacks import ATTACKS
from seepage.names.defenses import DEFENSES

pytest.importorskip("mkdocs", reason="mkdocs is not installed")
pytest.importorskip("material", reason="mkdocs-material is not installed")
converter = pytest.importorskip("latex2mathml.converter", reason="latex2mathml is not installed")
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


def test_every_attack_and_defense_has_its_equation_and_every_attack_a_figure() -> None:
    text = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (\w+)\n", text, flags=re.MULTILINE)[1:]
    equations = {name for name, body in zip(parts[::2], parts[1::2], strict=True) if "```math\n" in body}
    own = {name for name in DEFENSES if ":" not in name}  # a framework's filters are its own
    assert equations == {*ATTACKS, *own}
    for equation in re.findall(r"^```math\n(.*?)\n```$", text, re.MULTILINE | re.DOTALL):
        assert "\\" not in converter.convert(equation), f"a word that MathML was not made of: {equation}"
    shown = json.loads((ROOT / "docs" / "attacks" / "figures.json").read_text(encoding="utf-8"))
    assert set(shown) == set(ATTACKS)
    for name, one in shown.items():
        assert one.get("quoted") or (ROOT / "docs" / "attacks" / f"{name}.png").exists()


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


FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
MADE = ("metrics.md", "benchmarks.md", "api.md", "attacks/", "defenses/")
"""Pages of the site that `docs/site.py` makes: no file has them before the build, which checks them."""


def _anchors(file: Path) -> set[str]:
    """As GitHub makes them of headings."""
    heads = re.findall(r"^#+ (.+)$", FENCE.sub("", file.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def _broken(file: Path) -> list[str]:
    found = []
    for link in LINK.findall(FENCE.sub("", file.read_text(encoding="utf-8"))):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (file.parent / path).resolve() if path else file
        inside = target.relative_to(ROOT / "docs") if target.is_relative_to(ROOT / "docs") else target
        if not target.exists():
            found += [] if str(inside).startswith(MADE) else [link]
        elif anchor and target.suffix == ".md" and anchor not in _anchors(target):
            found.append(link)
    return found


@pytest.mark.parametrize(
    "file",
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")],
    ids=lambda file: str(file.relative_to(ROOT)),
)
def test_links_between_files_lead_somewhere(file: Path) -> None:
    """As somebody meets them who reads the repository and not the site."""
    assert _broken(file) == []


def test_a_broken_link_between_files_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A head\n[a](page.md#a-head) [b](gone.md) [c](#nowhere)\n", encoding="utf-8")
    assert _broken(page) == ["gone.md", "#nowhere"]
