"""`seepage explain`: something true about every name, without importing what it is about."""

from __future__ import annotations

import subprocess
import sys

import pytest

from seepage.catalogue import catalogue
from seepage.cli import main
from seepage.core.errors import SpecError
from seepage.core.types import Grant
from seepage.explaining import explain, explained
from seepage.names.papers import PAPERS, cited
from seepage.names.threats import GRANTS

NAMES = [(kind, line["name"]) for kind, lines in catalogue().items() for line in lines]


@pytest.mark.parametrize(("kind", "name"), NAMES)
def test_every_name_is_explained(kind, name):
    found = explained(kind, name)
    assert found.summary
    assert found.command


def test_every_grant_has_words():
    assert set(GRANTS) == {str(grant) for grant in Grant}


def test_what_an_attack_needs_is_what_it_asks_for():
    from seepage.attacks import ATTACKS

    told = dict(explain("shifted_rows")[0].needs)["Needs of the threat model"]
    assert all(f"({grant})" in told for grant in ATTACKS["shifted_rows"]().requires)


def test_papers_tables_and_settings_come_from_the_source():
    found = explain("trap_weights")[0]
    assert found.papers["Boenisch et al. 2021"] == PAPERS["Boenisch et al. 2021"]
    assert "boenisch2021/table5" in found.tables
    assert found.settings["read"] == "'peel'"
    assert cited("Zhu & Blaschko 2021") == {"Zhu and Blaschko 2021": PAPERS["Zhu and Blaschko 2021"]}


@pytest.mark.parametrize(("typed", "meant"), [("trap_weigts", "trap_weights"), ("fisching", "fishing")])
def test_a_typo_is_answered_with_the_nearest_name(typed, meant, capsys):
    with pytest.raises(SpecError, match=meant):
        explain(typed)
    with pytest.raises(SystemExit) as end:
        main(["explain", typed])
    assert end.value.code == 2
    assert meant in capsys.readouterr().err


def test_explaining_and_helping_need_no_torch():
    code = (
        "import sys; from seepage.cli import app; from seepage.explaining import explain; explain('tag');"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
