"""Clipping and noise with known answers, and the order in which defenses wrap each other."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn

from seepage.core.types import Batch, Broadcast, Defense, LocalStep, LocalTraining, Update, UpdateKind
from seepage.defenses import DEFENSES
from seepage.defenses.clipping import clipping
from seepage.defenses.gaussian_noise import gaussian_noise
from seepage.protocol import client

BROADCAST = Broadcast(nn.Linear(2, 2))
BATCH = Batch(torch.zeros(3, 2), torch.tensor([0, 1, 0]))


def sending(**tensors: torch.Tensor) -> LocalStep:
    return lambda broadcast, batch: Update(
        kind=UpdateKind.DELTA, tensors=tensors, num_examples=3, buffers={"b": torch.tensor([9.0])}
    )


@pytest.mark.parametrize("name", ["clipping", "gaussian_noise"])
def test_the_registry_builds_with_defaults(name) -> None:
    sent = DEFENSES[name].build()(BROADCAST, BATCH, sending(w=torch.ones(2)))
    assert sent.tensors["w"].shape == (2,)


def test_clipping_above_and_below_the_norm() -> None:
    # (3, 0 | -4) has the norm 5 over both tensors together
    tensors = {"w": torch.tensor([[3.0, 0.0]]), "b": torch.tensor([-4.0])}
    above = clipping(norm=1.0)(BROADCAST, BATCH, sending(**tensors))
    assert torch.allclose(above.tensors["w"], torch.tensor([[0.6, 0.0]]))
    assert torch.allclose(above.tensors["b"], torch.tensor([-0.8]))
    for norm in (5.0, 7.5, float("inf")):
        below = clipping(norm=norm)(BROADCAST, BATCH, sending(**tensors))
        assert all(torch.equal(below.tensors[k], tensors[k]) for k in tensors)
    assert above.kind is UpdateKind.DELTA
    assert above.num_examples == 3
    assert above.buffers["b"].item() == 9.0


def test_a_zero_update_stays_zero() -> None:
    sent = clipping(norm=0.1)(BROADCAST, BATCH, sending(w=torch.zeros(3)))
    assert sent.tensors["w"].tolist() == [0.0, 0.0, 0.0]


@settings(max_examples=50, deadline=None)
@given(norm=st.floats(1e-3, 1e3), scale=st.floats(1e-3, 1e3), seed=st.integers(0, 1000))
def test_clipping_keeps_the_direction_and_bounds_the_norm(norm, scale, seed) -> None:
    g = torch.Generator().manual_seed(seed)
    tensors = {
        "a": scale * torch.randn(3, 4, generator=g, dtype=torch.float64),
        "b": scale * torch.randn(5, generator=g, dtype=torch.float64),
    }
    sent = clipping(norm=norm)(BROADCAST, BATCH, sending(**tensors)).tensors
    before = torch.cat([t.flatten() for t in tensors.values()])
    after = torch.cat([t.flatten() for t in sent.values()])
    assert after.norm().item() == pytest.approx(min(norm, before.norm().item()), rel=1e-12)
    assert torch.cosine_similarity(before, after, dim=0).item() == pytest.approx(1.0, abs=1e-12)


def test_noise_has_the_stated_standard_deviation() -> None:
    n, sigma = 40_000, 0.3
    base = torch.linspace(-1, 1, n, dtype=torch.float64)
    sent = gaussian_noise(sigma=sigma, seed=5)(BROADCAST, BATCH, sending(w=base))
    noise = sent.tensors["w"] - base
    # sum of squares over sigma^2 is chi-square with n degrees of freedom; two-sided 99.9 %
    low, high = stats.chi2(n).ppf([0.0005, 0.9995])
    assert low < (noise.square().sum() / sigma**2).item() < high
    assert abs(noise.mean().item()) < stats.norm.ppf(0.9995) * sigma / n**0.5
    assert stats.kstest(noise.numpy() / sigma, "norm").pvalue > 0.001
    assert sent.tensors["w"].dtype is torch.float64
    assert sent.num_examples == 3


def test_same_seed_same_noise_and_new_noise_each_time() -> None:
    step = sending(w=torch.zeros(6), v=torch.zeros(6))
    one, two, other = gaussian_noise(seed=1), gaussian_noise(seed=1), gaussian_noise(seed=2)
    first, again = one(BROADCAST, BATCH, step), two(BROADCAST, BATCH, step)
    assert all(torch.equal(first.tensors[k], again.tensors[k]) for k in ("w", "v"))
    assert not torch.equal(first.tensors["w"], first.tensors["v"])
    assert not torch.equal(first.tensors["w"], other(BROADCAST, BATCH, step).tensors["w"])
    second = one(BROADCAST, BATCH, step)  # the next client or round must not get the same noise
    assert not torch.equal(first.tensors["w"], second.tensors["w"])


def test_no_noise_at_sigma_zero() -> None:
    sent = gaussian_noise(sigma=0.0)(BROADCAST, BATCH, sending(w=torch.tensor([1.5, -2.0])))
    assert sent.tensors["w"].tolist() == [1.5, -2.0]


@pytest.mark.parametrize("norm", [0.0, -1.0, float("nan")])
def test_clipping_refuses(norm) -> None:
    with pytest.raises(ValueError, match="norm must be positive"):
        clipping(norm=norm)


@pytest.mark.parametrize("sigma", [-1.0, float("nan"), float("inf")])
def test_noise_refuses(sigma) -> None:
    with pytest.raises(ValueError, match="sigma must be zero or positive and finite"):
        gaussian_noise(sigma=sigma)


def test_the_first_defense_is_outermost() -> None:
    calls: list[str] = []

    def recording(name: str, factor: float) -> Defense:
        def defend(broadcast: Broadcast, batch: Batch, next_step: LocalStep) -> Update:
            calls.append(f"{name} before")
            update = next_step(broadcast, batch)
            calls.append(f"{name} after")
            assert batch is BATCH
            assert broadcast is BROADCAST
            tensors = {k: t * factor + 1 for k, t in update.tensors.items()}
            return Update(kind=update.kind, tensors=tensors)

        return defend

    plain = client(LocalTraining())(BROADCAST, BATCH).tensors["bias"]
    sent = client(LocalTraining(), [recording("a", 2), recording("b", 10)])(BROADCAST, BATCH)
    assert calls == ["a before", "b before", "b after", "a after"]
    assert torch.allclose(sent.tensors["bias"], (plain * 10 + 1) * 2 + 1)


def test_noise_outside_clipping_breaks_the_bound_and_inside_keeps_it() -> None:
    outside = client(LocalTraining(), [gaussian_noise(sigma=1.0), clipping(norm=0.01)])
    inside = client(LocalTraining(), [clipping(norm=0.01), gaussian_noise(sigma=1.0)])

    def norm(update: Update) -> float:
        return torch.cat([t.flatten() for t in update.tensors.values()]).norm().item()

    assert norm(outside(BROADCAST, BATCH)) > 0.1
    assert norm(inside(BROADCAST, BATCH)) == pytest.approx(0.01, rel=1e-5)


def test_a_defense_may_refuse_before_any_training() -> None:
    class Refused(Exception):  # noqa: N818 - a stand-in for a detector's refusal
        pass

    def refuse(broadcast: Broadcast, batch: Batch, next_step: LocalStep) -> Update:
        raise Refused

    def unreachable(broadcast: Broadcast, batch: Batch, next_step: LocalStep) -> Update:
        raise AssertionError("reached")

    with pytest.raises(Refused):
        client(LocalTraining(), [refuse, unreachable])(BROADCAST, BATCH)


@pytest.mark.parametrize("name", ["dp_sgd", "gaussian_noise", "central_dp", "hide_bias"])
def test_two_clients_never_send_the_same_noise_unless_an_audit_seeds_it(name: str) -> None:
    entry = DEFENSES[name]
    options = {"hide_bias": {"how": "noise"}, "central_dp": {"server_honest": True}}.get(name, {})
    batch = Batch(torch.rand(4, 3), torch.tensor([0, 1, 1, 0]))
    received = Broadcast(nn.Linear(3, 2))

    def bias(**seed: int) -> Tensor:
        return client(LocalTraining(), [entry.build(**options, **seed)])(received, batch).tensors["bias"]

    assert not torch.equal(bias(), bias())
    assert torch.equal(bias(seed=7), bias(seed=7))
