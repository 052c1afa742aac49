"""Constants of the crafted blocks that no derivation gives: half or twice as large, the same texts come out.

Fresh seeds, on networks of `test_decepticons`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from tests.attacks.text.setting import as_set
from tests.attacks.text.test_decepticons import LENGTH, attacked
from tests.models.families import texts
from tests.plateaus import scaled

from seepage.core.errors import NotApplicable
from seepage.core.types import Reconstruction

ROOM = "seepage.attacks.text"
SEED, TEXTS = 97_001, 5
CONSTANTS = (
    "bins:RATIO",
    "bins:NEAR",
    "bins:ROUNDS",
    "bins:SAME",
    "bins:SAME_CODE",
    "bins:_ROUNDING",
    "chaining:LINK",
    "planting:STEEPNESS",
    "planting:QUIET",
    "planting:SAMPLED",
    "planting:_ALIKE",
    "planting:_PLACES",
)


def outcome(run: Callable[[], Reconstruction], ids: torch.Tensor) -> tuple[int, int, int]:
    """Texts that come out, claims, and claims that are wrong."""
    try:
        found = run()
    except NotApplicable:
        return 0, 0, 0
    truth, claimed = as_set(ids), as_set(found.values[found.claimed]) if found.claimed is not None else set()
    return len(truth & as_set(found.values)), len(claimed & truth), len(claimed - truth)


def of_crafted() -> list[tuple[int, int, int]]:
    ids = texts(TEXTS, length=LENGTH, seed=SEED)
    return [
        outcome(lambda f=family, o=loss: attacked(f, ids, loss=o), ids)  # type: ignore[misc]
        for family, loss in (("gpt2", "next_token"), ("bert", "cross_entropy"))
    ]


def test_constants_of_crafted_texts_lie_on_a_plateau() -> None:
    shipped = of_crafted()
    assert shipped == [(TEXTS, TEXTS, 0)] * 2
    for constant in CONSTANTS:
        for factor in (0.5, 2.0):
            with scaled(f"{ROOM}.{constant}", factor):
                assert of_crafted() == shipped, (constant, factor)
