"""How thresholds are made, and that the shipped ones are complete."""

from __future__ import annotations

import numpy as np
import pytest
from research.guard.thresholds import (
    AIM,
    Scored,
    accused,
    alarm_share,
    interval,
    left_out_share,
    limits,
    safe_margins,
    smallest_margins,
)
from scipy.stats import beta

from seepage.core.types import Verdict
from seepage.guardian.detectors import DETECTORS, calibration
from seepage.guardian.detectors.calibrated import Reading, Thresholds, judge

NAMES = ("silenced_rows", "quantile_biases")  # without a least threshold


def models(groups: int = 6, each: int = 30, *, shift: float = 1.0) -> list[Scored]:
    """Architectures that differ more from each other than their models do."""
    rng = np.random.default_rng(0)
    return [
        Scored(scores={name: float(centre + rng.normal()) for name in NAMES}, group=str(group))
        for group, centre in enumerate(shift * rng.normal(size=groups))
        for _ in range(each)
    ]


def test_limits_by_hand() -> None:
    honest = [Scored(scores={"silenced_rows": float(i)}) for i in range(11)]
    assert limits(honest, dict.fromkeys(NAMES, 0.0)) == {"silenced_rows": 10.0}
    assert limits(honest, dict.fromkeys(NAMES, 2.0)) == {"silenced_rows": 12.0}  # nine tenths are 9 or below
    assert limits([Scored(scores={"trap_rows": -1.0})], {"trap_rows": 1.0}) == {"trap_rows": 0.3}  # the least


def test_an_alarm_of_any_detector_counts_once() -> None:
    limit = {"silenced_rows": 1.0, "quantile_biases": 1.0}
    both = Scored(scores={"silenced_rows": 2.0, "quantile_biases": 2.0})
    one, none = Scored(scores={"silenced_rows": 2.0}), Scored(scores={"silenced_rows": 1.0})
    assert accused(both, limit) == list(limit)
    assert alarm_share([both, one, none, none], limit) == 0.5


def test_left_out_share_against_a_plain_loop() -> None:
    honest = models(3, 10)
    alarms = 0
    for model in honest:
        rest = [other for other in honest if other.group != model.group]
        highest = {n: max(other.scores[n] for other in rest) for n in NAMES}
        alarms += any(model.scores[n] > highest[n] for n in NAMES)
    assert left_out_share(honest, dict.fromkeys(NAMES, 0.0)) == pytest.approx(alarms / len(honest))
    assert alarms > 0


def test_margins_are_the_smallest_that_hold_for_unseen_architectures() -> None:
    honest = models(shift=2.0)
    margins = smallest_margins(honest, NAMES)
    for name, margin in margins.items():
        assert left_out_share(honest, {name: margin}) <= AIM / len(NAMES)
        assert left_out_share(honest, {name: margin - 0.05}) > AIM / len(NAMES)
    assert left_out_share(honest, margins) <= AIM  # all detectors together
    suspicious = limits(honest, safe_margins(margins))
    top = limits(honest, margins)
    assert all(suspicious[name] > top[name] for name in NAMES)


def test_only_the_structure_itself_is_called_a_trap() -> None:
    limits_at_one = Thresholds(suspicious=1.0)
    for score, exact, verdict in (
        (2.0, True, Verdict.TRAP),
        (2.0, False, Verdict.SUSPICIOUS),
        (1.0, True, Verdict.CLEAN),
    ):
        reading = Reading(score=score, layer=None, evidence="", exact=exact)
        assert judge(reading, limits_at_one).verdict is verdict
    certain = Scored(scores={"trap_rows": 2.0}, exact=frozenset({"trap_rows"}))
    assert accused(certain, {"trap_rows": 1.0}, of_trap=True) == ["trap_rows"]
    assert not accused(Scored(scores={"trap_rows": 2.0}), {"trap_rows": 1.0}, of_trap=True)


def test_interval_is_the_beta_quantile() -> None:
    low, high = interval(3, 200)
    assert low == pytest.approx(beta.ppf(0.025, 3, 198), abs=1e-4)
    assert high == pytest.approx(beta.ppf(0.975, 4, 197), abs=1e-4)


def test_the_shipped_calibration_is_complete() -> None:
    shipped = calibration()
    assert set(shipped["thresholds"]) == set(DETECTORS)
    populations = {"public", "trained", "small"}
    assert set(shipped["calibration_models"]) == populations
    found_in = shipped["false_alarms"]
    assert set(found_in) == {*populations, "rounds"}
    assert found_in["public"]["weights"]["models"] + found_in["trained"]["weights"]["models"] >= 150
    counts = [group for name in populations for group in found_in[name].values()]
    for found in (*counts, found_in["rounds"], *shipped["false_alarms_as_trap"].values()):
        assert found["share"] == pytest.approx(found["alarms"] / found["models"], abs=1e-4)
        assert len(found["where"]) == found["alarms"]
        assert found["interval"][0] <= found["share"] <= found["interval"][1]
