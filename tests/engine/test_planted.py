"""Canaries in trainings: whole clients against the closed form, and promises that do not hold."""

from __future__ import annotations

import math
from typing import Any

import pytest

from seepage.engine.planted import claim_of
from seepage.engine.points import Points
from seepage.engine.study import parse_study
from seepage.engine.training import train_cell

STUDY: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": [100]},
    "data": "digits",
    "attacks": ["analytic_extraction"],
    "seeds": [0],
    "protocol": {"batch_size": 8},
    "training": {"rounds": 4, "clients": 2, "examples": 16, "test_examples": 50, "tuned": False},
}


def trained(defense: dict[str, Any], canaries: int = 400, **protocol: Any) -> tuple[dict[str, float], str]:
    asked = {
        **STUDY,
        "protocol": {**STUDY["protocol"], **protocol},
        "defenses": [defense],
        "training": {**STUDY["training"], "canaries": canaries},
    }
    points = Points(parse_study(asked).grid())
    cell = train_cell(points.trained(1), 0, 4, points.training(1))
    assert cell.status == "done", cell.reason
    return cell.batch_scores, cell.reason


def test_canaries_among_examples_agree_with_the_accountant_in_the_same_training() -> None:
    """Two batches take turns in four rounds: two releases for each example."""
    scores, said = trained({"name": "dp_sgd", "sigma": 1.0}, canaries=500)
    assert scores["empirical epsilon"] == pytest.approx(scores["epsilon"], rel=0.2)
    assert scores["epsilon at least"] < scores["epsilon"]
    assert scores["empirical epsilon, low"] < scores["epsilon"] < scores["empirical epsilon, high"]
    assert scores["contradicted"] == 0.0 and said == ""


def test_clients_that_are_canaries_agree_with_the_accountant() -> None:
    """user_dp: four releases; the estimate is for all of them, the bound for the one that was seen."""
    scores, said = trained({"name": "user_dp", "sigma": 2.0})
    assert scores["empirical epsilon"] == pytest.approx(scores["epsilon"], rel=0.2)
    assert 0 < scores["epsilon at least"] < scores["epsilon"] and said == ""


def test_a_sensitivity_that_is_not_the_clipping_norm_is_flagged() -> None:
    pytest.importorskip("flwr")
    claim = {"name": "flower:LocalDpMod", "clipping_norm": 1.0, "epsilon": 10.0, "delta": 1e-5}
    scores, said = trained({**claim, "sensitivity": 1e-4}, canaries=20, algorithm="fedavg")
    assert scores["contradicted"] == 1.0 and 100 < scores["epsilon at least"] < math.inf
    assert "the promise of ε = 10.0 a round does not hold" in said
    kept, nothing = trained({**claim, "sensitivity": 1.0, "epsilon": 1.0}, canaries=20, algorithm="fedavg")
    assert kept["contradicted"] == 0.0 and nothing == ""


def test_without_a_promise_there_is_nothing_to_hold_against() -> None:
    points = Points(parse_study({**STUDY, "defenses": ["pruning"]}).grid())
    assert claim_of(points.trained(1)) is None
