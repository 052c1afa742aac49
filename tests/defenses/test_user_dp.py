"""Privacy for users: whole clients, and several users inside of one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from seepage.core.errors import SpecError
from seepage.core.types import Batch, Broadcast, LocalTraining
from seepage.defenses import Deployment, epsilon
from seepage.defenses.dp_sgd import dp_sgd
from seepage.defenses.entry import Schedule
from seepage.defenses.per_example import clipped_sum, loop_gradients
from seepage.defenses.user_dp import user_dp
from seepage.engine.prepare import prepare
from seepage.engine.promise import defense_records
from seepage.engine.spec import parse_spec
from seepage.protocol import client


def setting(n: int = 6) -> tuple[nn.Module, Batch]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    return model, Batch(torch.rand(n, 1, 3, 3, dtype=torch.float64), torch.randint(3, (n,)))


def test_a_users_mean_gradient_is_clipped_as_one() -> None:
    model, batch = setting()
    parameters = dict(model.named_parameters())
    each = loop_gradients(model, parameters, {}, batch, "auto")
    expected = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for start in range(0, 6, 3):
        mean = {name: g[start : start + 3].mean(dim=0) for name, g in each.items()}
        norm = torch.cat([g.flatten() for g in mean.values()]).norm()
        for name, g in mean.items():
            expected[name] += g * min(1.0, 0.3 / norm)
    found = clipped_sum(model, parameters, {}, batch, "auto", clip=0.3, user_examples=3)
    assert all(torch.allclose(found[name], expected[name], atol=1e-12) for name in parameters)


@pytest.mark.parametrize("at_once", [1, 2, 4, 100])
def test_virtual_batches_change_no_figure(at_once) -> None:
    model, batch = setting()
    for network in (model, nn.Sequential(nn.Identity(), *model)):  # by ghost clipping, and by vmap
        parameters = dict(network.named_parameters())
        whole = clipped_sum(network, parameters, {}, batch, "auto", clip=0.3)
        parts = clipped_sum(network, parameters, {}, batch, "auto", clip=0.3, at_once=at_once)
        assert all(torch.allclose(whole[name], parts[name], atol=1e-12) for name in parameters)


def test_a_client_is_clipped_as_a_whole_and_noised() -> None:
    model, batch = setting()
    training = LocalTraining(algorithm="fedavg", epochs=3, batch_size=2)
    plain = client(training)(Broadcast(model), batch)
    flat = torch.cat([t.flatten() for t in plain.tensors.values()])
    sent = client(training, [user_dp(norm=0.01, sigma=0.0)])(Broadcast(model), batch)
    found = torch.cat([t.flatten() for t in sent.tensors.values()])
    assert torch.allclose(found, flat * 0.01 / flat.norm(), atol=1e-12)
    noisy = client(training, [user_dp(norm=0.01, sigma=2.0, seed=1)])(Broadcast(model), batch)
    rest = torch.cat([t.flatten() for t in noisy.tensors.values()]) - found
    assert 0.6 < rest.std() / 0.02 < 1.4


def test_what_is_promised_is_about_users_and_clients() -> None:
    spec = parse_spec(
        {
            "model": "mlp",
            "data": "digits",
            "seeds": [0],
            "defenses": [{"name": "user_dp", "epsilon": 2.0}, {"name": "dp_sgd", "user_examples": 2}],
            "protocol": {"batch_size": 4, "rounds": 3},
        }
    )
    whole, user = defense_records(spec, prepare(spec).local)
    assert (whole.protects, whole.steps, user.protects) == ("one client", 3, "one user")
    assert whole.epsilon == pytest.approx(2.0, rel=1e-6)
    assert user.epsilon == epsilon(sigma=1.0, steps=3)


@pytest.mark.parametrize("batch_size", [3, 6])
def test_users_are_not_cut_apart(batch_size) -> None:
    around = Deployment(
        training=LocalTraining(algorithm="fedavg", batch_size=batch_size), schedule=Schedule(batch_size=9)
    )
    with pytest.raises(ValueError, match="cut users apart"):
        dp_sgd(user_examples=2, deployment=around)
    with pytest.raises(ValueError, match="drawn example by example"):
        dp_sgd(user_examples=2, deployment=Deployment(schedule=Schedule(batch_size=8, sampling_rate=0.1)))
    with pytest.raises(ValueError, match="at_once must be a whole number"):
        dp_sgd(at_once=0)


def test_a_wrong_epsilon_is_one_sentence() -> None:
    wanted = {"name": "user_dp", "epsilon": -1.0}
    with pytest.raises(SpecError, match="epsilon must be positive and finite"):
        prepare(parse_spec({"model": "mlp", "data": "digits", "seeds": [0], "defenses": [wanted]}))
