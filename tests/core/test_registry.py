"""One mechanism for every name: seepage's own, those of installed packages, and "package.module:thing"."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.core.packages import installed

from seepage.attacks import ATTACKS
from seepage.core.errors import DataError, SpecError
from seepage.core.registry import Entry, Registry, offered

GROUP = "seepage.letters"
OWN = {"alpha": Entry(where="seepage.core.errors:SpecError"), "omega": Entry(where="math:inf")}


@pytest.fixture
def letters() -> Registry[object]:
    return Registry("letter", group=GROUP, entries=OWN)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [n for n, m in sys.modules.items() if str(tmp_path) in str(getattr(m, "__file__", ""))]:
        del sys.modules[name]


def offer(site: Path, package: str, code: str = "thing = 1\n", **names: str) -> None:
    installed(site, package, modules={package: code}, offers={GROUP: names})


def test_as_a_mapping_it_holds_its_own_names_only(site: Path, letters: Registry[object]) -> None:
    offer(site, "greek", beta="greek:thing")
    assert list(letters) == ["alpha", "omega"] and len(letters) == 2
    assert "beta" not in letters and letters.get("beta") is None
    assert letters["alpha"] is SpecError and letters.find("omega") == float("inf")


def test_a_package_offers_a_name_and_nothing_of_it_is_imported_before(
    site: Path, letters: Registry[object]
) -> None:
    offer(site, "greek", beta="greek:thing")
    assert (
        letters.entries()["beta"] == letters.entry("beta") == Entry(where="greek:thing", package="greek 1.0")
    )
    assert "greek" not in sys.modules
    assert letters.find("beta") == 1
    assert "greek" in sys.modules


def test_an_unknown_name_is_answered_with_the_nearest_of_all(site: Path, letters: Registry[object]) -> None:
    offer(site, "greek", epsilon="greek:thing")
    with pytest.raises(SpecError, match=r"did you mean 'epsilon'\? Valid: alpha, epsilon, omega"):
        letters.find("epsilom")
    with pytest.raises(DataError, match=r"did you mean 'alpha'\? Valid: .* A path does as well\.$"):
        letters.find("alfa", error=DataError, hint="A path does as well.")


@pytest.mark.parametrize(
    "code", ["import no_such_module", "raise KeyError('x')", "1 +", "class Odd(Exception): ...\nraise Odd()"]
)
def test_a_package_that_breaks_is_named_in_one_sentence_and_hurts_no_other_name(
    site: Path, letters: Registry[object], code: str
) -> None:
    offer(site, "broken", code, beta="broken:thing")
    offer(site, "sound", gamma="sound:thing")
    assert {"alpha", "beta", "gamma"} <= set(letters.entries())
    assert letters.find("gamma") == 1 and letters.find("alpha") is SpecError
    with pytest.raises(SpecError, match=r"^letter 'beta' of package broken 1.0: 'broken' cannot be imported"):
        letters.find("beta")


def test_a_name_of_seepage_cannot_be_taken(site: Path, letters: Registry[object]) -> None:
    offer(site, "thief", alpha="thief:thing")
    sentence = "the letter 'alpha' of package thief 1.0 is refused, for the name is taken"
    with pytest.warns(UserWarning, match=sentence):
        assert letters.find("alpha") is SpecError
    assert letters.refused()[0].startswith(sentence)
    assert not letters.entries()["alpha"].package
    assert letters.find("thief:thing") == 1


def test_a_name_that_two_packages_offer_is_neither_ones(site: Path, letters: Registry[object]) -> None:
    offer(site, "one", beta="one:thing")
    offer(site, "two", beta="two:thing")
    with pytest.raises(SpecError, match=r"'beta' is offered by (one|two) 1.0 .* write which one you mean"):
        letters.find("beta")
    assert "beta" not in letters.entries() and len(letters.refused()) == 2


def test_things_without_a_name(site: Path, letters: Registry[object]) -> None:
    (site / "mine.py").write_text("def thing(): ...\n")
    assert callable(letters.find("mine:thing"))
    with pytest.raises(SpecError, match="did you mean 'thing'"):
        letters.find("mine:thong")
    with pytest.raises(SpecError, match=r"cannot be imported \(ModuleNotFoundError: .*; install it"):
        letters.find("nowhere:thing")
    with pytest.raises(SpecError, match="names no thing"):
        letters.find("mine:")


def test_the_records_of_packages_are_read_again_where_the_path_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(tmp_path, "late", beta="late:thing")
    assert not offered(GROUP)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert list(offered(GROUP)) == ["beta"]


def test_every_attack_is_there_and_requires_what_the_list_says() -> None:
    for name, build in ATTACKS.items():
        assert sorted(build().requires) == list(ATTACKS.entry(name).facts["requires"]), name


def in_a_new_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_names_are_known_without_torch() -> None:
    code = (
        "import seepage.names.attacks, sys; print(len(seepage.names.attacks.ATTACKS) > 9, "
        "'torch' in sys.modules)"
    )
    assert in_a_new_process(code) == "True False"


def test_one_attack_is_imported_without_the_others() -> None:
    loaded = in_a_new_process(
        "import sys; from seepage.attacks import ATTACKS; ATTACKS['analytic_extraction'];"
        "print(*(m for m in sys.modules if m.startswith('seepage.attacks.')))"
    ).split()
    assert "seepage.attacks.reading.analytic_extraction" in loaded
    assert not [module for module in loaded if ".fishing." in module or ".inversion." in module]
