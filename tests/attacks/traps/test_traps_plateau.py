"""Constants of traps that no derivation gives: some times as small or large, about as much is caught.

Real pictures and seeds that had no part in choosing them.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
from tests.plateaus import scaled

from seepage.attacks import ATTACKS
from seepage.core.types import Batch, InputSpec
from seepage.data import load_data

from .helpers import attack_clients, dense_net, found_examples, knowing

TRAPS = "seepage.attacks.traps"
SEEDS = (94_001, 94_002, 94_003)
SIZE, WIDTH = 24, 200
LOST = 0.15
"""Of the batch: chance decides about the last examples (three batches of 24)."""
CONSTANTS = {
    f"{TRAPS}.trap_weights:_DISTANCE": ("trap_weights", (0.7, 1.4)),
    f"{TRAPS}.quantile_traps:FIRING": ("quantile_traps", (0.7, 2.0)),
    f"{TRAPS}.scale_tuning:_LADDER": ("trap_weights", (0.7, 1.4)),
    f"{TRAPS}.scale_tuning:_NEARLY_BEST": ("trap_weights", (0.95, 1.02)),
    f"{TRAPS}.imprint:ASSUMED_STD": ("imprint", (0.5, 2.0)),
    f"{TRAPS}.imprint:_STRENGTH": ("imprint", (0.3, 3.0)),
}


@cache
def pictures(seed: int) -> tuple[Batch, Batch, InputSpec]:
    """A client's batch, and public examples."""
    data = load_data("faces")
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    return data.batch(order[:SIZE]), data.batch(order[SIZE : SIZE + 60]), data.spec


def caught(attack: str, *, read: str, public: bool) -> float:
    """Share of the examples that came out exactly, over the seeds."""
    shares = []
    for seed in SEEDS:
        batch, auxiliary, spec = pictures(seed)
        known = knowing(spec, auxiliary=auxiliary if public else None, seed=seed)
        options = {"bins": 100} if attack == "imprint" else {}
        model = dense_net(spec, WIDTH, seed=seed)
        result, _ = attack_clients(ATTACKS[attack](read=read, **options), model, [batch], known)
        truth = spec.to_raw(batch.inputs)
        shares.append(float(found_examples(result.values, truth, tolerance=1e-3).float().mean()))
    return sum(shares) / len(shares)


def outcome(attack: str) -> dict[tuple[str, bool], float]:
    return {
        (read, public): caught(attack, read=read, public=public)
        for read in ("rows", "peel")
        for public in (False, True)
    }


@cache
def as_shipped(attack: str) -> dict[tuple[str, bool], float]:
    return outcome(attack)


@pytest.mark.parametrize("attack", ["trap_weights", "quantile_traps", "imprint"])
def test_traps_catch_something_everywhere(attack: str) -> None:
    assert min(as_shipped(attack).values()) > 0


@pytest.mark.parametrize("constant", CONSTANTS)
def test_constants_of_traps_lie_on_a_plateau(constant: str) -> None:
    attack, factors = CONSTANTS[constant]
    for factor in factors:
        with scaled(constant, factor):
            found = outcome(attack)
        for case, share in as_shipped(attack).items():
            assert found[case] >= share - LOST, (factor, case, found[case], share)
