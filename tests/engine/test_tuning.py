"""The rate that a defense needs, and where a training ends: on known curves, and in a real training."""

from __future__ import annotations

import math
from typing import Any

import pytest

from seepage.engine.points import Points
from seepage.engine.study import parse_study
from seepage.engine.training import train_cell
from seepage.engine.tuning import Plateau, best_rate

STUDY: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": [32]},
    "data": "digits",
    "attacks": ["analytic_extraction"],
    "seeds": [0],
    "protocol": {"batch_size": 8, "lr": 0.1},
    "defenses": [{"name": "clipping", "norm": [0.05]}],
    "training": {"rounds": 60, "clients": 2, "test_examples": 200},
}


@pytest.mark.parametrize("best", [0.01, 0.1, 0.3, 3.0, 30.0])
def test_the_best_rate_of_a_known_curve_is_found_to_half_a_decade(best: float) -> None:
    found = best_rate(lambda rate: -abs(math.log10(rate / best)), 0.1)
    assert abs(math.log10(found / best)) <= 0.26


def test_a_plateau_ends_a_training_and_a_rise_does_not() -> None:
    rising = iter([0.1 * step for step in range(1, 11)])
    plateau = Plateau(lambda model: next(rising), examples=200, rounds=100)
    assert not any(plateau(None, number) for number in range(1, 101)) and not plateau.reached
    flat = Plateau(lambda model: 0.9, examples=200, rounds=100)
    assert next(number for number in range(1, 101) if flat(None, number)) == 50 and flat.reached


def test_a_clipped_training_gets_a_larger_rate_and_learns() -> None:
    """Clipping to a small norm makes steps at a rate of 0.1 too short."""
    points = Points(parse_study(STUDY).grid())
    training = points.training(1)
    assert training.tuned and training.validated == 100 and points.trained(1).spec.public_examples == 300
    assert training.examples == 744  # of 1797 whatever 300 held-out ones leave, in whole batches of 8
    tuned = train_cell(points.trained(1), 0, 60, training).batch_scores
    plain = train_cell(points.trained(1), 0, 60).batch_scores
    assert tuned["tested"] == 200 and tuned["lr"] >= 1.0
    assert tuned["accuracy"] > plain["accuracy"] + 0.2
    assert 0.08 < tuned["chance"] < 0.25 and tuned["plateau"] in (0.0, 1.0)


def test_a_rate_that_is_given_is_kept() -> None:
    fixed = {**STUDY, "training": {**STUDY["training"], "lr": 0.7}}
    points = Points(parse_study(fixed).grid())
    assert not points.training(0).tuned and points.trained(0).local.lr == 0.7
