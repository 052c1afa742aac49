"""Poisson sampling: what is drawn, what it is divided by, and what the accountant makes of it."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import nn

from seepage.core.errors import SpecError
from seepage.core.types import Batch, Broadcast, LocalTraining
from seepage.defenses import Deployment, epsilon
from seepage.defenses.dp_sgd import dp_sgd
from seepage.defenses.entry import Schedule
from seepage.engine.points import Points
from seepage.engine.prepare import prepare
from seepage.engine.promise import SAMPLED, defense_records
from seepage.engine.spec import parse_spec
from seepage.engine.study import parse_study
from seepage.engine.training import train_cell
from seepage.protocol import client

needs_pld = pytest.mark.skipif(
    find_spec("dp_accounting") is None,
    reason="dp-accounting is not installed: pip install 'seepage[dp]'",
)
SMALL: dict[str, Any] = {"model": {"name": "mlp", "hidden": [16]}, "data": "digits", "seeds": [0]}


def study(**training: Any) -> Points:
    spec = parse_study(
        {
            **SMALL,
            "protocol": {"batch_size": 20},
            "defenses": [{"name": "dp_sgd", "epsilon": 3.0}],
            "training": {
                "rounds": 10,
                "clients": 1,
                "examples": 400,
                "test_examples": 100,
                "sampling": "poisson",
                "tuned": False,
                **training,
            },
        }
    )
    return Points(spec.grid())


def test_each_example_is_drawn_with_the_rate_and_anew_every_round() -> None:
    sample, held_out = study().trained(1).draw_sampled(0, 0.05)
    sizes = torch.tensor([len(sample(number)[0]) for number in range(200)], dtype=torch.float64)
    assert held_out is not None and len(held_out) == 100
    # binomial: mean 20, variance 19; five standard errors of each
    assert abs(sizes.mean() - 20) < 5 * (19 / 200) ** 0.5
    assert 0.5 < sizes.var() / 19 < 1.8
    assert torch.equal(sample(3)[0].inputs, sample(3)[0].inputs)


def test_the_sum_is_divided_by_the_expected_size_and_the_size_is_not_told() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    batch = Batch(torch.rand(5, 4), torch.randint(3, (5,)))
    around = Deployment(schedule=Schedule(batch_size=8, sampling_rate=0.1))
    sent = client(LocalTraining(), [dp_sgd(clip=1e6, sigma=0.0, deployment=around)])(Broadcast(model), batch)
    plain = client(LocalTraining())(Broadcast(model), batch)
    assert torch.allclose(sent.tensors["1.weight"], plain.tensors["1.weight"] * 5 / 8, atol=1e-6)
    assert sent.num_examples == 8


def test_an_empty_sample_sends_noise_alone() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    around = Deployment(schedule=Schedule(batch_size=2, sampling_rate=0.1))
    nobody = Batch(torch.rand(0, 4), torch.randint(3, (0,)))
    sent = client(LocalTraining(), [dp_sgd(sigma=1.0, seed=0, deployment=around)])(Broadcast(model), nobody)
    assert sent.num_examples == 2 and bool((sent.tensors["1.weight"] != 0).all())


@needs_pld
def test_epsilon_counts_the_chance_to_be_drawn() -> None:
    protocol = {"batch_size": 4, "holds": 400, "rounds": 50}
    spec = parse_spec({**SMALL, "defenses": ["dp_sgd"], "protocol": protocol})
    (record,) = defense_records(spec, prepare(spec).local)
    assert record.epsilon == epsilon(sigma=1.0, steps=50, sampling_rate=0.01)
    assert (record.sampling_rate, record.steps, record.accountant) == (0.01, 50, SAMPLED)
    assert record.epsilon < epsilon(sigma=1.0, steps=50) / 10


@needs_pld
def test_a_target_holds_for_the_training_and_the_attacked_update_has_its_noise() -> None:
    points = study()
    audited, trained = points[1], points.trained(1)
    (over_training,) = defense_records(
        trained.spec, trained.local, planned=trained.planned, lived=trained.planned
    )
    (seen,) = defense_records(audited.spec, audited.local, planned=audited.planned)
    assert 2.97 < over_training.epsilon <= 3.0
    assert (over_training.steps, over_training.sampling_rate) == (10, 0.05)
    assert seen.sigma == over_training.sigma
    cell = train_cell(trained, 0, 10)
    assert cell.status == "done" and cell.batch_scores["tested"] == 100


def test_what_cannot_be_sampled_is_refused() -> None:
    with pytest.raises(SpecError, match="cannot draw 20 of a client's 10"):
        study(examples=10).check()
    with pytest.raises(SpecError, match="belongs to algorithm = 'fedsgd'"):
        parse_spec({**SMALL, "protocol": {"holds": 80, "algorithm": "fedavg"}})
    with pytest.raises(SpecError, match="a round draws batch_size = 8"):
        parse_spec({**SMALL, "protocol": {"holds": 4}})
