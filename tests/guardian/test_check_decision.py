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
from seepage.guardian import check, guard
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


SHARES = {"weights": 0.01, "all": 0.02, "with previous": 0.04, "rounds": 0.08}


@pytest.mark.parametrize(
    ("ran", "rate"),
    [
        (("trap_rows",), 0.01),
        (("trap_rows", "transmission"), 0.02),
        (("trap_rows", "round_jump"), 0.04),
        (("trap_rows", "round_jump", "step_history"), 0.12),
        (("trap_rows", "loss_jump"), 0.09),
    ],
)
def test_the_false_alarm_rate_is_that_of_the_checks_that_ran(
    monkeypatch: pytest.MonkeyPatch, ran: tuple[str, ...], rate: float
) -> None:
    """Comparing rounds adds the rounds' own share: the two can only err more often together."""
    rates = {name: {"share": share} for name, share in SHARES.items()}
    shipped = {**check.calibration(), "false_alarms": rates}
    monkeypatch.setattr(check, "calibration", lambda: shipped)
    report = judged(monkeypatch, **{name: says(Verdict.CLEAN, "a") for name in ran})
    assert report.false_alarm_rate == pytest.approx(rate)


def test_no_share_of_false_alarms_is_above_all(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {name: {"share": 0.7} for name in SHARES}
    monkeypatch.setattr(check, "calibration", lambda: {"false_alarms": rates})
    assert judged(monkeypatch, step_history=says(Verdict.CLEAN, "a")).false_alarm_rate == 1.0


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


def test_a_tenth_of_trapped_rows_is_enough_and_a_twentieth_is_not() -> None:
    """Crafted rows show from the share on that the score is taken at: the lowest tenth of the rows."""
    scores = []
    for crafted in (3, 10):
        torch.manual_seed(0)
        layer = nn.Linear(64, 60)
        with torch.no_grad():
            half = layer.weight[:crafted, :32].abs()
            layer.weight[:crafted] = torch.cat([-half, 0.9 * half.flip(1)], dim=1)
        scores.append(trap_rows()(Broadcast(nn.Sequential(layer, nn.ReLU(), nn.Linear(60, 2)))).score)
    assert scores[0] < 1.0
    assert scores[1] > 3.0


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
