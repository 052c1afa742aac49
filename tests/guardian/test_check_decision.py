"""How the guard decides among its checks, and what its false-alarm rate counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from seepage.core.errors import NotApplicable
from seepage.core.types import Batch, Broadcast, Detector, Finding, Verdict
from seepage.guardian import check, false_alarms, guard
from seepage.guardian.detectors import DETECTORS
from seepage.guardian.detectors.transmission import arrival
from seepage.guardian.detectors.trap_rows import trap_rows

HONEST = nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))


def says(verdict: Verdict, layer: str) -> Callable[..., Detector]:
    return lambda **_: lambda _broadcast: Finding(verdict=verdict, evidence=layer, score=1.0, layer=layer)


def silent(**_: Any) -> Detector:
    def detector(_broadcast: Broadcast) -> Finding:
        raise NotApplicable("it cannot be run here.")

    return detector


def judged(monkeypatch: pytest.MonkeyPatch, **answers: Callable[..., Detector]) -> check.GuardReport:
    """A guard whose checks answer as told; those that are not named cannot be run."""
    monkeypatch.setattr(check, "DETECTORS", {name: answers.get(name, silent) for name in DETECTORS})
    return guard(HONEST)


@pytest.mark.parametrize("order", [1, -1])
def test_the_worst_alarm_decides_wherever_it_stands(monkeypatch: pytest.MonkeyPatch, order: int) -> None:
    first, second = [name for name in DETECTORS if name in ("trap_rows", "row_balance")][::order]
    answers = {first: says(Verdict.SUSPICIOUS, "a"), second: says(Verdict.TRAP, "b")}
    report = judged(monkeypatch, **answers)
    assert (report.verdict, report.layer, report.detector) == (Verdict.TRAP, "b", second)


def test_of_equal_alarms_the_first_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [name for name in DETECTORS if name in ("trap_rows", "row_balance")]
    report = judged(monkeypatch, **{name: says(Verdict.TRAP, name) for name in names})
    assert (report.detector, report.layer) == (names[0], names[0])


def test_one_clean_check_does_not_outvote_an_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    report = judged(
        monkeypatch, trap_rows=says(Verdict.CLEAN, "a"), row_balance=says(Verdict.SUSPICIOUS, "b")
    )
    assert (report.verdict, report.layer) == (Verdict.SUSPICIOUS, "b")


@pytest.mark.parametrize(
    ("ran", "group", "rounds"),
    [
        (("trap_rows",), "weights", False),
        (("trap_rows", "transmission"), "all", False),
        (("trap_rows", "round_jump"), "with previous", False),
        (("trap_rows", "round_jump", "step_history"), "with previous", True),
        (("trap_rows", "loss_jump"), "weights", True),
    ],
)
def test_false_alarms_are_those_of_the_checks_that_ran(
    monkeypatch: pytest.MonkeyPatch, ran: tuple[str, ...], group: str, rounds: bool
) -> None:
    """One count for each population: of the group that ran, and of trainings where rounds were compared."""
    counted = {"alarms": 1, "models": 9, "families": 3, "interval": [0.1, 0.2]}
    nothing = {**counted, "models": 0}
    groups = {name: counted if name == group else nothing for name in ("weights", "all", "with previous")}
    measured = {"public": groups, "trained": groups, "small": groups, "rounds": counted}
    monkeypatch.setattr(false_alarms, "calibration", lambda: {"thresholds": {}, "false_alarms": measured})
    report = judged(monkeypatch, **{name: says(Verdict.CLEAN, "a") for name in ran})
    populations = [count.population for count in report.false_alarms.counts]
    assert populations == ["public", "trained", "small", *(["rounds"] if rounds else [])]


class Watching:
    """A check as an object, which has no name but its class's."""

    def __call__(self, broadcast: Broadcast) -> Finding:
        return Finding(verdict=Verdict.CLEAN, evidence="", score=0.0, layer=None)


def test_checks_of_ones_own_get_what_they_have_parameters_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def curious(*, sample: Any, batch: Any, previous: Any, history: Any) -> Detector:
        given.update(sample=sample, batch=batch, previous=previous, history=history)
        return Watching()

    (tmp_path / "own_check.py").write_text(
        "from seepage.core.types import Finding, Verdict\n"
        "def alarmed(broadcast):\n"
        "    return Finding(verdict=Verdict.TRAP, evidence='seen', score=2.0, layer='1')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    rounds = [nn.Sequential(nn.Flatten(), nn.Linear(64, 3)) for _ in range(3)]
    batch = Batch(torch.zeros(2, 64), torch.zeros(2, dtype=torch.long))
    own = [curious, Watching(), "own_check:alarmed"]
    report = guard(rounds[0], history=rounds, sample=batch, detectors=own)
    assert {"curious", "Watching", "own_check:alarmed"} <= {*report.findings}
    assert (report.verdict, report.detector) == (Verdict.TRAP, "own_check:alarmed")
    assert given["batch"] is batch and given["sample"] is batch.inputs
    assert given["previous"] is rounds[-1] and given["history"] is rounds
    guard(rounds[0], previous=rounds[1], history=rounds, sample=batch.inputs, detectors=[curious])
    assert given["batch"] is None and given["previous"] is rounds[1]


def test_two_copied_rows_are_a_trap_and_noisy_ones_need_a_tenth() -> None:
    """Copies up to rounding exist in no honest layer; with noise on them the lowest tenth decides."""
    scores = []
    for crafted, noise in ((1, 0.0), (3, 0.0), (3, 0.1), (10, 0.1)):
        torch.manual_seed(0)
        layer = nn.Linear(64, 60)
        with torch.no_grad():
            half = layer.weight[:crafted, :32].abs()
            layer.weight[:crafted] = torch.cat([-half, 0.9 * half.flip(1)], dim=1)
            layer.weight[:crafted] *= 1 + noise * torch.rand(crafted, 64)
        scores.append(trap_rows()(Broadcast(nn.Sequential(layer, nn.ReLU(), nn.Linear(60, 2)))).score)
    assert scores[0] < 1.0 and scores[1] > 3.0
    assert scores[2] < 0.3 < scores[3] < 3.0


def test_what_arrives_untouched_has_a_large_and_finite_ratio() -> None:
    """Rounding lifts some correlations to 1 and beyond, where the ratio would be infinite or negative."""
    for seed in range(20):
        inputs = torch.randn(96, 4, generator=torch.Generator().manual_seed(seed))
        assert arrival(inputs, 3 * inputs) == pytest.approx(5e5, rel=0.05)


@pytest.mark.parametrize(("kept", "arrives"), [(0.6, False), (0.9, True)])
def test_transmission_is_judged_at_the_lower_quartile_of_the_inputs(kept: float, arrives: bool) -> None:
    """Three quarters of the input values must arrive, so that a skip of a few pixels is no pass-through."""
    torch.manual_seed(0)
    inputs = torch.randn(96, 40)
    number = int(kept * 40)
    features = torch.cat([inputs[:, :number], torch.randn(96, 40 - number)], dim=1)
    assert (arrival(inputs, features) > 1e3) == arrives
