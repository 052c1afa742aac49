"""Objects in the place of names: they run, travel without the truth, and are told apart on resume."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import seepage
from seepage.attacks import ATTACKS, Attack
from seepage.core.errors import SpecError
from seepage.core.types import (
    Batch,
    Broadcast,
    Defense,
    Exchange,
    Grant,
    Knowledge,
    LocalStep,
    Reconstruction,
    Update,
)
from seepage.engine.given import contents, hold, take
from seepage.protocol import ThreatModel

X = torch.rand(60, 1, 6, 6, generator=torch.Generator().manual_seed(7))
Y = torch.arange(60) % 3


def mine(**settings: Any) -> Attack:
    """An attack that only this function knows, as a script or a notebook has them."""

    class Mine(Attack):
        def __init__(self, *, shift: float = 0.0, extra: Any = None) -> None:
            self.shift, self.extra = shift, extra

        def reconstruct(self, exchanges: Sequence[Exchange], known: Knowledge) -> Reconstruction:
            rows = []
            for exchange in exchanges:
                weight, bias = list(exchange.update.tensors.values())[:2]
                best = bias.abs().argmax()
                rows.append(weight[best] / bias[best] + self.shift)
            return Reconstruction(values=torch.stack(rows).reshape(-1, *known.input.shape))

    return Mine(**settings)


def audited(out: Path, **settings: Any) -> seepage.AuditResult:
    wanted = {
        "model": "mlp",
        "data": (X, Y),
        "batch_size": 1,
        "seeds": [0, 1],
        "public_examples": 8,
        **settings,
    }
    return seepage.audit(**wanted, out=out, on_plan=lambda _: None)


def test_an_attack_object_runs_where_no_data_is_and_is_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = audited(tmp_path, attacks=[mine()])
    assert log.scores("Mine")["exact"] == 1.0
    (said,) = {cell.knowledge[-1] for cell in log.cells if cell.attack.name == "Mine"}
    assert said.startswith("Ran in a process that never held the data")
    first = {cell.attack.name: cell.made_by for cell in log.cells}
    audited(tmp_path, attacks=[mine()])
    assert "run again" not in capsys.readouterr().err
    again = audited(tmp_path, attacks=[mine(shift=0.5)])
    assert "run again, for these changed since: the attack's settings" in capsys.readouterr().err
    assert again.scores("Mine")["exact"] == 0.0
    assert {cell.attack.name: cell.made_by for cell in again.cells}["prior_only"] == first["prior_only"]


@pytest.mark.parametrize(
    "hidden",
    [
        X,
        X[7],
        X[3:5].clone(),
        {"deep": [X[9].double().numpy()]},
        lambda: X,
        torch.cat([torch.zeros(36), X[1].flatten()])[:36],
        nn.Linear(36, 1, bias=False),
        (X[4] * 255).numpy(),
    ],
    ids=[
        "all",
        "one",
        "a copy",
        "inside a container",
        "in a function",
        "beside it in memory",
        "as weights",
        "in other units",
    ],
)
def test_an_attack_that_carries_the_data_along_is_refused(tmp_path: Path, hidden: Any) -> None:
    if isinstance(hidden, nn.Linear):
        hidden.weight.data.copy_(X[2].flatten())
    with pytest.raises(SpecError, match="attack 'Mine' holds examples of the audited data"):
        audited(tmp_path, attacks=[mine(extra=hidden)])


def test_what_cannot_be_sent_is_one_sentence(tmp_path: Path) -> None:
    said = r"attack 'Mine' .* cannot be sent there .* without open files"
    with pytest.raises(SpecError, match=said):
        audited(tmp_path, attacks=[mine(extra=(number for number in range(3)))])
    with Path(__file__).open() as file, pytest.raises(SpecError, match=said):
        audited(tmp_path, attacks=[mine(extra=[file])])


def test_classes_take_settings_and_unknown_ones_are_named(tmp_path: Path) -> None:
    kind = type(mine())
    log = audited(tmp_path, attacks=[{"name": kind, "shift": 0.5}, mine()])
    assert log.scores("Mine")["exact"] == 0.0 and log.scores("Mine_2")["exact"] == 1.0
    with pytest.raises(SpecError, match="unknown setting of attack 'Mine' 'shft': did you mean 'shift'"):
        audited(tmp_path / "other", attacks=[{"name": kind, "shft": 0.5}])


def halved(broadcast: Broadcast, batch: Batch, next_step: LocalStep) -> Update:
    """Sends half of everything."""
    sent = next_step(broadcast, batch)
    return Update(**{**vars(sent), "tensors": {name: tensor / 2 for name, tensor in sent.tensors.items()}})


def muted(*, keep: int = 0) -> Defense:
    """Sends zeros after `keep` calls, which it counts."""
    calls: list[int] = []

    def mute(broadcast: Broadcast, batch: Batch, next_step: LocalStep) -> Update:
        calls.append(1)
        sent = next_step(broadcast, batch)
        kept = 1.0 if len(calls) <= keep else 0.0
        return Update(**{**vars(sent), "tensors": {name: t * kept for name, t in sent.tensors.items()}})

    return mute


def test_defenses_are_functions_of_a_step_or_what_builds_them(tmp_path: Path) -> None:
    log = audited(tmp_path / "half", attacks=["analytic_extraction"], defenses=[halved])
    assert log.scores("analytic_extraction")["exact"] == 1.0  # one factor cancels
    (record,) = log.header.defenses
    assert (record.defense.name, record.description, record.guarantee) == (
        "halved",
        "Sends half of everything.",
        "heuristic",
    )
    built = audited(tmp_path / "mute", attacks=["analytic_extraction"], defenses=[{"name": muted, "keep": 0}])
    assert built.scores("analytic_extraction")["exact"] == 0.0
    with pytest.raises(SpecError, match="unknown setting of defense 'muted' 'kep': did you mean 'keep'"):
        audited(tmp_path / "typo", attacks=["prior_only"], defenses=[{"name": muted, "kep": 0}])


def test_every_cell_gets_a_defense_that_has_seen_nothing(tmp_path: Path) -> None:
    log = audited(tmp_path, attacks=["analytic_extraction"], defenses=[muted(keep=1)])
    assert log.scores("analytic_extraction")["exact"] == 1.0


def test_another_defense_under_the_same_name_is_another_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    audited(tmp_path, attacks=["analytic_extraction"], defenses=[muted(keep=1)])
    log = audited(tmp_path, attacks=["analytic_extraction"], defenses=[muted(keep=0)])
    assert "the defenses' settings" in capsys.readouterr().err
    assert log.scores("analytic_extraction")["exact"] == 0.0


def test_a_threat_model_of_ones_own(tmp_path: Path) -> None:
    threat = ThreatModel(
        name="tap", description="Sees one wire.", grants=frozenset({Grant.INDIVIDUAL_UPDATES})
    )
    log = audited(tmp_path, attacks=["analytic_extraction"], threat=threat)
    assert (log.header.threat.name, log.header.threat.description) == ("tap", "Sees one wire.")


def test_an_adaptive_server_adapts_an_object_too(tmp_path: Path) -> None:
    log = audited(tmp_path, attacks=[mine()], defenses=["clipping"], seeds=[0])
    (twin,) = [cell for cell in log.cells if cell.attack.name == "adaptive"]
    assert twin.status == "done" and twin.attack.params["attack"] == "Mine"
    assert "never held the data" in twin.knowledge[-1]


def test_an_object_never_takes_a_name_of_seepage() -> None:
    def sign(broadcast: Broadcast, batch: Batch, next_step: LocalStep) -> Update:
        return next_step(broadcast, batch)

    assert take({"defenses": [sign, "sign"]})[0] == {"defenses": ["sign_2", "sign"]}


def test_names_of_an_earlier_audit_are_forgotten() -> None:
    plain, _ = take({"attacks": [mine()]})
    assert plain == {"attacks": ["Mine"]} and ATTACKS.entry("Mine").outside
    hold({})
    with pytest.raises(SpecError, match="unknown attack 'Mine'"):
        ATTACKS.entry("Mine")


class Box:
    def __init__(self, inside: Any) -> None:
        self.inside = inside


def network(value: float) -> nn.Module:
    layer = nn.Linear(1, 1)
    layer.weight.data.fill_(value)
    return layer


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Box(1), Box(2)),
        (Box(Box("a")), Box(Box("b"))),
        (Box([torch.zeros(2)]), Box([torch.ones(2)])),
        (Box(network(1.0)), Box(network(2.0))),
        (Box(lambda: 1), Box(lambda: 2)),
        (muted(keep=1), muted(keep=2)),
    ],
)
def test_contents_tell_objects_apart(one: Any, other: Any) -> None:
    assert contents(one) == contents(one) != contents(other)


def test_contents_of_what_holds_itself() -> None:
    box = Box(None)
    box.inside = [box]
    assert contents(box) == contents(box)
