"""Constants of the detectors that no derivation gives: some times as small or large, every verdict stays.

Honest networks of five kinds, and traps built by hand, on seeds that had no part in choosing them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from research.guard.honest_rounds import Training, federated
from tests.plateaus import scaled
from torch import nn

from seepage.core.errors import NotApplicable
from seepage.core.types import Broadcast, InputSpec, Modality, Verdict
from seepage.guardian.detectors import DETECTORS, looking_at
from seepage.guardian.detectors.layers import same_draws
from seepage.guardian.detectors.loss_jump import loss_jump
from seepage.guardian.detectors.step_history import step_history
from seepage.models.loading import build_model

from .test_detectors_behaviour import SPEC, net
from .test_detectors_rounds import SETTING
from .test_detectors_weights import POSITIVES

ROOM = "seepage.guardian.detectors"
SEEDS = (95_001, 95_002)
HONEST = ("mlp", "lenet_zhu", "plain_convnet", "resnet20", "vit")
PICTURES = InputSpec(modality=Modality.IMAGE, shape=(3, 32, 32), num_classes=10)
JITTER = 0.01
OF_WEIGHTS = {
    "pass_through:_PEAK": (0.9, 1.005),
    "pass_through:_FEW": (0.5, 2.0),
    "quantile_biases:_NEGLIGIBLE": (0.1, 10.0),
    "quantile_biases:_BY_CHANCE": (0.5, 1.5),
    "silenced_rows:_MOSTLY": (0.8, 1.1),
    "trap_rows:_LEAST_PAIRS": (0.5, 2.0),
    "trap_rows:_LOW_SHARE": (0.5, 2.0),
    "trap_rows:_ONE_SIZE": (0.1, 10.0),
}
OF_BEHAVIOUR = {
    "transmission:_LOW_SHARE": (0.5, 2.0),
    "lone_neurons:_BATCH": (0.5, 2.0),
    "harmless:_GRAIN": (0.5, 2.0),
}
OF_ROUNDS = {"loss_jump:_LEAST_LOSS": (0.3, 3.0), "step_history:_LEAST_STEP": (0.1, 10.0)}


def verdict(look: Callable[[], object]) -> str:
    try:
        with same_draws(95_000):
            return str(look())
    except NotApplicable:
        return "cannot look"


@cache
def honest() -> list[nn.Module]:
    return [build_model(name, PICTURES, seed=seed) for name in HONEST for seed in SEEDS]


def by_weights(name: str) -> list[str]:
    build, craft, _ = POSITIVES[name]
    traps = [build(seed) for seed in SEEDS]  # type: ignore[call-arg]
    for trap in traps:
        craft(trap)
        if name == "trap_rows":  # as a careful server sends them: no half is quite a copy of the other
            jitter = torch.randn(trap[0].weight.shape, generator=torch.Generator().manual_seed(SEEDS[0]))
            trap[0].weight.data.mul_(1 + JITTER * jitter)
    return [
        verdict(lambda m=model: DETECTORS[name]()(Broadcast(m)).verdict)
        for model in (*traps, *honest())  # type: ignore[misc]
    ]


def transmitting(seed: int) -> nn.Sequential:
    model = net(seed)
    with torch.no_grad():
        model[1].weight[:64] = torch.diag(0.5 + torch.rand(64))[torch.randperm(64)]
        model[1].bias[:64] = 0
    return model


def by_behaviour() -> list[str]:
    small = [*(transmitting(seed) for seed in SEEDS), *(net(seed) for seed in SEEDS)]
    pairs = [*((model, SPEC) for model in small), *((model, PICTURES) for model in honest())]
    return [
        verdict(lambda n=name, m=model, s=spec: DETECTORS[n](spec=s)(Broadcast(m)).verdict)  # type: ignore[misc]
        for name in looking_at("behaviour")
        for model, spec in pairs
    ]


@cache
def trained() -> Training:
    return federated(SETTING, initialiser="default", steps=4, seed=95_003)


def by_rounds() -> list[str]:
    training = trained()
    fresh = SETTING.build(initialiser="gaussian_0.5", seed=95_004)
    with torch.no_grad():
        [*fresh.modules()][-1].weight.mul_(100.0)
    found = []
    for model, number in ((training.models[6], 6), (training.models[9], 9), (fresh, 9)):
        before = training.models[:number]
        detectors = (loss_jump(history=before, batch=training.own), step_history(history=before))
        found += [verdict(lambda d=one, m=model: d(Broadcast(m)).verdict) for one in detectors]  # type: ignore[misc]
    return found


@pytest.mark.parametrize("constant", OF_WEIGHTS)
def test_constants_of_weight_detectors_lie_on_a_plateau(constant: str) -> None:
    name = constant.partition(":")[0]
    shipped = by_weights(name)
    assert str(Verdict.CLEAN) not in shipped[: len(SEEDS)]
    assert {*shipped[len(SEEDS) :]} <= {str(Verdict.CLEAN), "cannot look"}
    for factor in OF_WEIGHTS[constant]:
        with scaled(f"{ROOM}.{constant}", factor):
            assert by_weights(name) == shipped, factor


@pytest.mark.parametrize("constant", OF_BEHAVIOUR)
def test_constants_of_behaviour_detectors_lie_on_a_plateau(constant: str) -> None:
    shipped = by_behaviour()
    assert str(Verdict.SUSPICIOUS) in shipped
    for factor in OF_BEHAVIOUR[constant]:
        with scaled(f"{ROOM}.{constant}", factor):
            assert by_behaviour() == shipped, factor


@pytest.mark.parametrize("constant", OF_ROUNDS)
def test_constants_of_round_detectors_lie_on_a_plateau(constant: str) -> None:
    shipped = by_rounds()
    assert len({*shipped}) == 2
    for factor in OF_ROUNDS[constant]:
        with scaled(f"{ROOM}.{constant}", factor):
            assert by_rounds() == shipped, factor
