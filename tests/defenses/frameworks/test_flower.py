"""Flower's own mods as defenses, run by a real ClientApp."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from torch import nn

from seepage.core.errors import NotApplicable, SpecError
from seepage.core.types import Batch, Broadcast, LocalTraining, Update
from seepage.defenses import DEFENSES, Deployment
from seepage.protocol import client

pytest.importorskip("flwr")
from flwr.serverapp.strategy import DifferentialPrivacyClientSideAdaptiveClipping

ONE_STEP = LocalTraining(algorithm="fedavg", lr=0.5)
DP = {"clipping_norm": 0.02, "sensitivity": 1e-4, "epsilon": 10.0, "delta": 1e-5}


def doubling(msg, ctxt, call_next):
    """A mod of somebody's own, which reads the server's message."""
    factor = next(iter(msg.content.config_records.values()))["factor"]
    before = {n: a.numpy() for n, a in next(iter(msg.content.array_records.values())).items()}
    reply = call_next(msg, ctxt)
    record = next(iter(reply.content.array_records.values()))
    for name, array in list(record.items()):
        record[name] = type(array)(before[name] + np.float32(factor) * (array.numpy() - before[name]))
    return reply


def silent(msg, ctxt, call_next):
    """Answers without any training."""
    return type(msg)(content=msg.content, reply_to=msg)


def _sent(name: str, training: LocalTraining = ONE_STEP, **settings: object) -> Update:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))
    batch = Batch(torch.rand(4, 12), torch.tensor([0, 1, 2, 0]))
    defenses = []
    if name:
        defenses = [DEFENSES.find(name).build(deployment=Deployment(training=training), **settings)]
    return client(training, defenses)(Broadcast(model), batch)


def _norm(update: Update) -> float:
    return float(torch.cat([t.flatten() for t in update.tensors.values()]).norm())


def test_fixed_clipping_bounds_the_norm_and_keeps_the_direction() -> None:
    plain, sent = _sent(""), _sent("flower:fixedclipping_mod", clipping_norm=0.02)
    assert _norm(plain) > 0.02
    assert _norm(sent) == pytest.approx(0.02, rel=1e-4)
    one, other = plain.tensors["1.weight"].flatten(), sent.tensors["1.weight"].flatten()
    assert float(torch.cosine_similarity(one, other, dim=0)) == pytest.approx(1.0, abs=1e-5)


def test_adaptive_clipping_starts_where_flowers_strategy_starts() -> None:
    starts = inspect.signature(DifferentialPrivacyClientSideAdaptiveClipping).parameters
    default = starts["initial_clipping_norm"].default
    assert DEFENSES.find("flower:adaptiveclipping_mod").settings["clipping_norm"] == default
    assert _norm(_sent("flower:adaptiveclipping_mod", clipping_norm=0.02)) == pytest.approx(0.02, rel=1e-4)


def test_local_dp_adds_the_noise_of_flowers_formula() -> None:
    clipped = _sent("flower:fixedclipping_mod", clipping_norm=0.02)
    noisy = _sent("flower:LocalDpMod", **{**DP, "sensitivity": 1.0})
    noise = torch.cat([(noisy.tensors[n] - clipped.tensors[n]).flatten() for n in noisy.tensors])
    sigma = np.sqrt(2 * np.log(1.25 / 1e-5)) / 10
    assert float(noise.std()) == pytest.approx(sigma, rel=0.2)  # 131 numbers: within 3 standard errors


def test_the_seed_decides_the_noise() -> None:
    first, again, other = (_sent("flower:LocalDpMod", seed=s, **DP) for s in (1, 1, 2))
    assert torch.equal(first.tensors["1.weight"], again.tensors["1.weight"])
    assert not torch.equal(first.tensors["1.weight"], other.tensors["1.weight"])


def test_a_mod_of_ones_own_gets_what_the_server_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "app_mods", __import__("sys").modules[__name__])
    sent = _sent("flower:app_mods.doubling", config={"factor": 2.0})
    assert torch.allclose(sent.tensors["1.weight"], 2 * _sent("").tensors["1.weight"], atol=1e-6)
    with pytest.raises(NotApplicable, match="without any training"):
        _sent("flower:app_mods.silent")


def test_mods_that_only_log_change_nothing() -> None:
    plain, sent = _sent(""), _sent("flower:message_size_mod")
    assert all(torch.allclose(plain.tensors[n], sent.tensors[n], atol=1e-7) for n in plain.tensors)


@pytest.mark.parametrize(
    ("name", "settings", "training", "said"),
    [
        ("flower:fixedclipping_mod", {"clipping_norm": 1.0}, LocalTraining(), "algorithm = 'fedavg'"),
        ("flower:LocalDPMod", {}, ONE_STEP, "did you mean 'flower:LocalDpMod'"),
    ],
)
def test_mistakes_are_one_sentence(name: str, settings: dict, training: LocalTraining, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        _sent(name, training, **settings)


def test_a_setting_without_a_default_must_be_given() -> None:
    with pytest.raises(ValueError, match="no default for sensitivity and epsilon"):
        _sent("flower:LocalDpMod", clipping_norm=1.0, delta=1e-5)
