"""What the guard's report says, for people and for machines."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

from seepage.core.types import Finding, Verdict
from seepage.guardian import false_alarms, guard
from seepage.guardian.check import GuardReport
from seepage.guardian.detectors import DETECTORS, calibration
from seepage.guardian.detectors.coverage import Coverage, coverage
from seepage.guardian.false_alarms import Count, FalseAlarms, checks_digest

ALARM = Finding(verdict=Verdict.TRAP, score=4.0, layer="1", evidence="rows are mirrored")
DOUBT = Finding(verdict=Verdict.SUSPICIOUS, score=2.5, layer="3", evidence="biases are large")
RATES = FalseAlarms((Count("public", 1, 80, 20, (0.0003, 0.067)),))
ONE = {"alarms": 1, "models": 80, "families": 20, "interval": [0.0003, 0.067]}
QUIET = Finding(verdict=Verdict.CLEAN, score=0.1, layer="1", evidence="nothing")


def report(**changes: Any) -> GuardReport:
    fields: dict[str, Any] = {
        "verdict": Verdict.TRAP,
        "layer": "1",
        "evidence": "rows are mirrored",
        "score": 4.0,
        "detector": "trap_rows",
        "false_alarms": RATES,
        "findings": {"trap_rows": ALARM, "row_balance": DOUBT, "pass_through": QUIET},
        "unchecked": {"transmission": "no spec was given."},
        "seconds": 0.12345,
        "layers": Coverage(
            read=("1", "3"), unread={"5": "is stored flat"}, left_out={"embed": "is an embedding"}
        ),
        "caveat": "Take care.",
    }
    return GuardReport(**{**fields, **changes})


def test_a_report_for_people() -> None:
    assert report().text().splitlines() == [
        "Verdict: trap (layer '1')",
        "Evidence: rows are mirrored.",
        "Check 'trap_rows': 4. These checks were not silent on 1 of 80 honest public models (weights alone) "
        "of 20 families (95 % interval 0.0% to 6.7%).",
        "Also: biases are large (row_balance: suspicious).",
        "Layers looked at: 1, 3.",
        "Layer not checked: '5' is stored flat.",
        "No check is about: embed is an embedding.",
        "Not checked: transmission: no spec was given.",
        "Take care.",
    ]


def test_checks_that_did_not_run_for_one_reason_share_a_line() -> None:
    unchecked = {"transmission": "no spec.", "round_jump": "no model.", "step_history": "no spec."}
    lines = [line for line in report(unchecked=unchecked).text().splitlines() if line.startswith("Not c")]
    assert [line.removeprefix("Not checked: ") for line in lines] == [
        "transmission, step_history: no spec.",
        "round_jump: no model.",
    ]


def test_every_rate_names_its_population_and_its_interval() -> None:
    for count in FalseAlarms.of({"round_jump": QUIET, "step_history": QUIET}).counts:
        assert f"of {count.models} honest" in str(count) and "95 % interval" in str(count)
        assert count.interval[1] > 0
    assert "ten rounds" in FalseAlarms.of({"loss_jump": QUIET}).text()
    assert "ten rounds" not in FalseAlarms.of({"trap_rows": QUIET}).text()


def test_a_rate_of_other_checks_than_those_that_ran_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three populations counted at other thresholds, and one without the sample that was given here."""
    shipped = calibration()
    now = {"models": checks_digest(shipped["thresholds"]), "rounds": checks_digest({})}
    counts = {name: {"all": {**ONE, "models": 10}} for name in ("trained", "small")}
    counts["public"] = {"all": ONE, "with sample": ONE}
    known = {**shipped, "counted_with": now, "false_alarms": {**counts, "rounds": ONE}}
    monkeypatch.setattr(false_alarms, "calibration", lambda: known)
    found = FalseAlarms.of({"rare_neurons": QUIET, "loss_jump": QUIET})
    assert {count.population: count.note for count in found.counts} == {
        "public": "",
        "trained": "counted without a sample",
        "small": "counted without a sample",
        "rounds": "counted before the checks were last changed",
    }
    assert "interval 0.0% to 6.7%; counted without a sample)" in found.text()
    assert found.to_dict()["small"]["note"] == "counted without a sample"
    known["thresholds"] = {**shipped["thresholds"], "trap_rows": 0.5}
    assert "last changed" in FalseAlarms.of({"rare_neurons": QUIET}).counts[0].note
    del known["counted_with"]
    assert "last changed" in FalseAlarms.of({"rare_neurons": QUIET}).counts[0].note


def test_nothing_that_could_be_looked_at() -> None:
    empty = {"verdict": Verdict.NOT_CHECKED, "layer": None, "score": None, "detector": None, "findings": {}}
    lines = report(**empty, layers=Coverage(), unchecked={}).text().splitlines()
    assert lines == [
        "Verdict: not checked",
        "Evidence: rows are mirrored.",
        "Layers looked at: none.",
        "Take care.",
    ]


@pytest.mark.parametrize(("layers", "told"), [(6, "0, 1, 2, 3, 4, 5."), (8, "0, 1, 2, 3, 4, 5 and 2 more.")])
def test_long_lists_are_cut_and_counted(layers: int, told: str) -> None:
    text = report(layers=Coverage(read=tuple(str(i) for i in range(layers)))).text()
    assert f"Layers looked at: {told}" in text.splitlines()


def test_a_report_for_machines() -> None:
    assert json.loads(json.dumps(report().to_dict())) == {
        "verdict": "trap",
        "layer": "1",
        "evidence": "rows are mirrored",
        "detector": "trap_rows",
        "score": 4.0,
        "false_alarms": {"public": {"alarms": 1, "models": 80, "interval": [0.0003, 0.067]}},
        "seconds": 0.123,
        "findings": {
            "trap_rows": {"verdict": "trap", "score": 4.0, "layer": "1", "evidence": "rows are mirrored"},
            "row_balance": {
                "verdict": "suspicious",
                "score": 2.5,
                "layer": "3",
                "evidence": "biases are large",
            },
            "pass_through": {"verdict": "clean", "score": 0.1, "layer": "1", "evidence": "nothing"},
        },
        "not_checked": {"transmission": "no spec was given."},
        "layers_checked": ["1", "3"],
        "layers_not_checked": {"5": "is stored flat", "embed": "is an embedding"},
        "caveat": "Take care.",
    }


def test_the_last_round_of_a_history_is_the_previous_one() -> None:
    """Another architecture is a jump: whether it stands first or last in the history decides."""
    now = nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 60), nn.ReLU(), nn.Linear(60, 10))
    jumped = [
        guard(now, history=history).findings["round_jump"].verdict is not Verdict.CLEAN
        for history in ([other, now], [now, other])
    ]
    assert jumped == [False, True]
    assert guard(now, previous=now, history=[other]).findings["round_jump"].verdict is Verdict.CLEAN


def test_a_silent_guard_says_what_it_looked_at_and_what_it_could_not() -> None:
    now = nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    found = guard(now, history=[now] * 3, sample=torch.rand(4, 64))
    assert found.verdict is Verdict.CLEAN
    assert found.evidence == f"none of {len(found.findings)} checks found a known sign"
    assert found.layers == coverage(now) and found.layers.read
    assert set(found.findings) | set(found.unchecked) == set(DETECTORS)
    assert "give its InputSpec" in found.unchecked["transmission"]
    assert "label" in found.unchecked["loss_jump"]  # the examples came without theirs
    assert 0 < found.seconds < 600
