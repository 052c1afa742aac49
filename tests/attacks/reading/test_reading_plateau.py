"""Constants of reading and peeling that no derivation gives: three times as small or large, nothing changes.

The populations and seeds here had no part in choosing them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from tests.attacks.reading.peeling.builders import errors, sent
from tests.plateaus import scaled
from torch import Tensor, nn

from seepage.attacks import ATTACKS
from seepage.core.types import Batch, Exchange, InputSpec, Knowledge, Modality
from seepage.data import load_data, standardised
from seepage.models.precision import EXACT

PEELING = "seepage.attacks.reading.peeling"
READING = "seepage.attacks.reading"
CONSTANTS = [
    f"{PEELING}.tolerances:BENT",
    f"{PEELING}.tolerances:BENT_CLEAR",
    f"{PEELING}.tolerances:FEW",
    f"{PEELING}.tolerances:ACCIDENTS",
    f"{PEELING}.tolerances:TIGHT",
    f"{PEELING}.codes:_TOKEN_DISTANCE",
    f"{PEELING}.grid:_FEW_OFF",
    f"{READING}.unmixing.mixture:_GAP",
    f"{READING}.rows:SKETCH",
    f"{READING}.rows:_SAME",
    f"{READING}.scale:SAME_SCALE",
    f"{READING}.scale:_INTEGER",
    f"{READING}.scale:_NEAR",
    f"{READING}.scale:_AROUND",
    f"{READING}.scale:_PLAUSIBLE",
    f"{READING}.scale:_UNEXPECTED",
    f"{READING}.union:_SAME",
]
FACTORS = (1 / 3, 3.0)


def texts(seed: int) -> tuple[nn.Module, Batch, InputSpec]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Embedding(40, 6), nn.Flatten(), nn.Linear(30, 60), nn.ReLU(), nn.Linear(60, 4))
    batch = Batch(torch.randint(40, (6, 5)), torch.randint(4, (6,)))
    return model, batch, InputSpec(modality=Modality.TEXT, shape=(5,), num_classes=4, vocabulary=40)


@cache
def populations() -> tuple[tuple[str, Exchange, Knowledge, Tensor], ...]:
    """Pictures on a grid, a table off it, both again scaled down with no number of examples, and texts."""
    found = []
    for name, seed, size, width in (("digits", 91_001, 8, 100), ("breast_cancer", 91_003, 6, 120)):
        data = load_data(name)
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
        if data.spec.modality is Modality.TABULAR:
            data = standardised(data, order[size : size + 100])
        batch = data.batch(order[:size])
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Flatten(), nn.Linear(batch.inputs[0].numel(), width), nn.ReLU(), nn.Linear(width, 10)
        )
        twice = Batch(*(torch.cat([t, t[:1]]) for t in (batch.inputs, batch.labels)))
        truth, spec = data.spec.to_raw(batch.inputs), replace(data.spec, num_classes=10)
        found.append((name, *sent(model, twice, spec), truth))
        scaled_down = sent(model, batch, spec, factor=0.043, tell_number=False)
        found.append((f"{name}, scaled down", *scaled_down, truth))
    model, batch, spec = texts(91_005)
    found.append(("texts", *sent(model, batch, spec), batch.inputs))
    return tuple(found)


def outcome() -> dict[str, tuple[int, int, int]]:
    """Of each population and attack: candidates claimed, claims that are wrong, examples that were read."""
    results = {}
    for what, exchange, known, truth in populations():
        spec = known.input
        unit = truth.abs().max() if spec.value_range is None else spec.value_range[1] - spec.value_range[0]
        for name in ("analytic_extraction", "exact_extraction"):
            read = ATTACKS[name]().run([exchange], known)
            assert read.claimed is not None
            near = errors(read.values.float(), truth.float()) <= EXACT * float(unit)
            wrong = read.claimed & ~near.any(1)
            results[f"{what}, {name}"] = (int(read.claimed.sum()), int(wrong.sum()), int(near.any(0).sum()))
    return results


@cache
def as_shipped() -> dict[str, tuple[int, int, int]]:
    return outcome()


def test_the_populations_are_read_and_nothing_false_is_claimed() -> None:
    shipped = as_shipped()
    assert all(read > 0 for _, _, read in shipped.values())
    assert sum(claimed for claimed, _, _ in shipped.values()) >= 30
    assert all(wrong == 0 for _, wrong, _ in shipped.values())


@pytest.mark.parametrize("constant", CONSTANTS)
def test_constants_of_reading_lie_on_a_plateau(constant: str) -> None:
    for factor in FACTORS:
        with scaled(constant, factor):
            assert outcome() == as_shipped(), factor
