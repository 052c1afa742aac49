"""No cheat gains anything: an attack from outside runs where the data never was and can reach nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import seepage
from seepage.attacks import ATTACKS
from seepage.core.errors import AttackError, SpecError
from seepage.engine.isolation import landlock
from seepage.engine.isolation.attack import IsolatedAttack

HERE = Path(__file__).parent
SEEDS = [0, 1]
WORKED_IN_THE_SAME_PROCESS = ("garbage", "frames", "disk", "past_python", "run_folder", "another_program")


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's folder: private data in two formats, and a module with attacks."""
    monkeypatch.chdir(tmp_path)
    pixels = torch.rand(60, 1, 6, 6, generator=torch.Generator().manual_seed(7)).numpy()
    np.savez("private.npz", x=pixels, y=np.arange(60) % 3)
    pixels.tofile("private.bin")
    (tmp_path / "cheats.py").write_text((HERE / "cheats.py").read_text())
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("cheats", None)


def audited(attack: str | dict[str, Any], **settings: Any) -> seepage.AuditResult:
    return seepage.audit(
        model={"name": "mlp", "hidden": [8]},
        data="private.npz",
        data_options={"value_range": (0.0, 1.0)},
        attacks=[attack],
        batch_size=4,
        seeds=SEEDS,
        out="run",
        public_examples=8,
        **{"threat": "malicious_server", **settings},
    )


def exact(log: seepage.AuditResult) -> int:
    cells = [cell for cell in log.cells if cell.attack.name != "prior_only"]
    assert all(cell.status == "done" for cell in cells), [cell.reason for cell in cells]
    return sum(int(example.scores["exact"]) for cell in cells for example in cell.examples)


@pytest.mark.parametrize("spy", ["hooks", "forward"])
def test_no_cheat_gains_anything(deployment: Path, spy: str) -> None:
    log = audited({"name": "cheats:Cheat", "spy": spy})
    assert exact(log) == 0
    (knowledge,) = {cell.knowledge[-1] for cell in log.cells if cell.attack.name != "prior_only"}
    assert knowledge.startswith("Ran in a process that never held the data")
    notes = " ".join(note for cell in log.cells for note in cell.notes)
    for name in ("disk", "drawn_again", "another_program", "the_other_process"):
        assert f"{name}: PermissionError" in notes  # they were tried, and were stopped
    if landlock.version():
        assert "past_python: RuntimeError" in notes


@pytest.mark.parametrize("name", WORKED_IN_THE_SAME_PROCESS)
def test_the_cheats_are_real(deployment: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """In the process that holds the data each of them gets everything."""
    import cheats  # the copy in the user's folder

    monkeypatch.setattr("seepage.engine.prepare.planned_attack", _here(cheats))
    assert exact(audited({"name": "cheats:Cheat", "cheats": [name]})) == 4 * len(SEEDS)


def _here(cheats: Any) -> Any:
    def planned(name: str, settings: dict[str, Any]) -> Any:
        return (cheats.Cheat if ":" in name else ATTACKS[name])(**settings)

    return planned


def test_a_spy_on_a_crafted_model_sees_nothing_even_in_the_same_process(
    deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cheats

    monkeypatch.setattr("seepage.engine.prepare.planned_attack", _here(cheats))
    assert exact(audited({"name": "cheats:Cheat", "cheats": ["spies"], "spy": "hooks"})) == 0


def test_noise_cannot_be_subtracted(deployment: Path) -> None:
    defense = [{"name": "dp_sgd", "sigma": 4.0, "clip": 1.0}]
    settings = {"threat": "honest_but_curious", "adaptive": False, "batch_size": 4}
    log = audited(
        "cheats:Denoiser", defenses=defense, **{k: v for k, v in settings.items() if k != "batch_size"}
    )
    assert exact(log) == 0


def test_an_error_of_an_outside_attack_is_one_sentence(deployment: Path) -> None:
    with pytest.raises(AttackError, match=r"raised ZeroDivisionError: on purpose \(cheats.py"):
        audited("cheats:noisy_talker")
    with pytest.raises(SpecError, match="did you mean 'Cheat'"):
        audited("cheats:Cheet")
    with pytest.raises(SpecError, match="cannot be imported"):
        audited("no_such_module:Attack")


def test_a_process_that_dies_fails_its_cell_and_the_next_one_gets_another(deployment: Path) -> None:
    log = audited("cheats:Dies", threat="honest_but_curious")
    cells = [cell for cell in log.cells if cell.attack.name == "cheats:Dies"]
    assert [cell.status for cell in cells] == ["failed", "failed"]
    assert all("exit code 7" in cell.reason for cell in cells)


def test_files_that_the_user_grants_can_be_read_and_no_others(deployment: Path) -> None:
    np.save("prior.npy", np.zeros((2, 36), dtype=np.float32))
    settings = {"prior": str(deployment / "prior.npy")}
    with pytest.raises(AttackError, match=r"may not open 'prior.npy'"):
        IsolatedAttack("cheats:ReadsItsPrior", settings)
    granted = IsolatedAttack("cheats:ReadsItsPrior", {**settings, "may_read": ["prior.npy"]})
    granted.close()
    with pytest.raises(SpecError, match="files or folders that exist"):
        IsolatedAttack("cheats:ReadsItsPrior", {**settings, "may_read": ["nowhere.npy"]})


def test_an_attack_put_into_the_registry_from_outside_is_isolated_too(
    deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller's objects stay with the caller: the attack is made anew on the other side."""
    import cheats

    monkeypatch.setitem(ATTACKS, "mine", cheats.Cheat)
    assert exact(audited({"name": "mine", "cheats": ["garbage", "modules", "frames"]})) == 0
    holding = torch.rand(4, 1, 6, 6)
    monkeypatch.setitem(ATTACKS, "closure", lambda: cheats.Cheat(cheats=[str(holding.sum())]))
    with pytest.raises(SpecError, match="at the top level of a module"):
        audited("closure")
