"""Constants of servers that know the defense: half or three times as large, as much comes out.

The batches and defenses' settings here had no part in choosing them.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
from tests.plateaus import scaled
from torch import Tensor

from seepage.attacks import ATTACKS
from seepage.attacks.adaptive.attack import adaptive
from seepage.attacks.adaptive.counts import whole_class_counts
from seepage.attacks.adaptive.factor import undo_clipping
from seepage.attacks.fishing.head import class_head, find_head
from seepage.core.types import Batch, Broadcast, Exchange, LocalTraining
from seepage.defenses import DEFENSES
from seepage.protocol import client

from .test_attack import KNOWN, SPEC, net

ADAPTIVE = "seepage.attacks.adaptive"
CONSTANTS = [
    f"{ADAPTIVE}.counts:_SAME",
    f"{ADAPTIVE}.dense:NEARLY",
    f"{ADAPTIVE}.dense:_ROUNDING",
    f"{ADAPTIVE}.factor:_AS_WHOLE",
]
WORSE = 0.1
"""By which the mean distance to the examples may grow: a row more or less is moved into the range."""
SEEDS = (95_001, 95_002)
SENT = (("pruning", {"share": 0.6}), ("gaussian_noise", {"sigma": 0.002}), ("quantisation", {"bits": 7}))


def pictures(seed: int) -> Batch:
    inputs = torch.rand(3, 1, 6, 6, generator=torch.Generator().manual_seed(seed))
    return Batch(inputs.clamp(0.1, 0.9) * 1.25 - 0.125, torch.tensor([0, 1, 1]))


def seen(defense: str, seed: int, *, fishing: bool = False, **settings: object) -> Exchange:
    model = net()
    if fishing:
        model = class_head(model, find_head(model, SPEC, None), 1, alpha=1000.0)
    build = DEFENSES[defense].build
    seeded = {"seed": seed} if defense == "gaussian_noise" else {}
    sent = client(LocalTraining(), [build(**settings, **seeded)])(Broadcast(model), pictures(seed))
    return Exchange(broadcast=Broadcast(model), update=sent, clients=(0,))


def missed(values: Tensor, seed: int) -> float:
    return float(torch.cdist(pictures(seed).inputs.flatten(1), values.flatten(1)).amin(dim=1).mean())


def errors() -> list[float]:
    """Of what a server reads that knows what was done to the update."""
    return [
        missed(adaptive(knows=[{"name": name, **more}]).run([seen(name, seed, **more)], KNOWN).values, seed)
        for name, more in SENT
        for seed in SEEDS
    ]


def restored() -> list[list[float]]:
    """The last bias gradients that clipping and noise are taken off, from honest and from fishing heads."""
    found = []
    for seed in SEEDS:
        for fishing in (False, True):
            clipped, _ = undo_clipping(
                seen("clipping", seed, fishing=fishing, norm=1e-3), KNOWN, {"norm": 1e-3}
            )
            noisy = whole_class_counts(seen("gaussian_noise", seed, fishing=fishing, sigma=0.01), KNOWN)
            found += [each["3.bias"].tolist() for each in (clipped, noisy) if each]
    return found


@cache
def as_shipped() -> tuple[list[float], list[list[float]]]:
    return errors(), restored()


def test_who_knows_reads_better_than_who_does_not() -> None:
    plain = [
        missed(ATTACKS["analytic_extraction"]().run([seen(name, seed, **more)], KNOWN).values, seed)
        for name, more in SENT
        for seed in SEEDS
    ]
    assert sum(as_shipped()[0]) < 0.7 * sum(plain)
    assert len(as_shipped()[1]) >= 6


@pytest.mark.parametrize("constant", CONSTANTS)
def test_constants_of_adaptive_lie_on_a_plateau(constant: str) -> None:
    for factor in (1 / 2, 3.0):
        with scaled(constant, factor):
            found = zip(errors(), as_shipped()[0], strict=True)
            assert all(now <= (1 + WORSE) * before for now, before in found), factor
            assert restored() == as_shipped()[1], factor
