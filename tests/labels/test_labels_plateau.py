"""Constants of label inference that no derivation gives: half or twice as large, the counts are as right.

Fresh seeds, in networks and trainings of `test_counts`, `test_replay` and `test_examples`.
"""

from __future__ import annotations

from functools import cache, partial

import pytest
import torch
from tests.plateaus import scaled
from torch import nn

from seepage.core.errors import NotApplicable
from seepage.core.types import Batch, Broadcast, Exchange, InputSpec, Knowledge, LocalTraining, Modality
from seepage.labels import infer_label_counts
from seepage.protocol import local_update

from .test_counts import clustered, exchange_of, gradient_of, lenet, mlp, uniform

LABELS = "seepage.labels"
CONSTANTS = [
    f"{LABELS}.counts:ERROR_SCALES",
    f"{LABELS}.fit:DRIFT_DIRECTIONS",
    f"{LABELS}.fit:MATCHING_STEPS",
    f"{LABELS}.fit:MATCHING_RATE",
    f"{LABELS}.fit:PREDICTION_ERROR",
    f"{LABELS}.fit:OFFSET_VARIANCE",
    f"{LABELS}.fit:SHARE_FLOOR",
    f"{LABELS}.methods:REFINEMENTS",
    f"{LABELS}.methods:PROBE_STRENGTH",
    f"{LABELS}.methods:COUNT_FLOOR",
    f"{LABELS}.steps:OVERSHOT",
]
CLASSES = 4
SPEC = InputSpec(modality=Modality.IMAGE, shape=(1, 8, 8), num_classes=CLASSES)
TRAININGS = (
    LocalTraining(algorithm="fedavg", epochs=3, lr=0.1),
    LocalTraining(algorithm="fedavg", epochs=2, batch_size=4, lr=0.05),
    LocalTraining(algorithm="fedavg", epochs=8, lr=0.2),
)
Case = tuple[Exchange, Knowledge, list[int]]


def dense(classes: int) -> nn.Module:
    """So small that its examples are fitted in no time."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, classes))


def drawn(seed: int, data: object, n: int) -> Batch:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    return data(n, CLASSES, generator)  # type: ignore[operator, no-any-return]


@cache
def cases() -> tuple[Case, ...]:
    """Gradients whose number of examples is known, and not; weight differences of several steps."""
    found: list[Case] = []
    nets = ((mlp, clustered), (lenet, uniform), (partial(mlp, bias=False), clustered), (dense, clustered))
    for seed, (net, data) in enumerate(nets, start=96_001):
        batch = drawn(seed, data, 12)
        model: nn.Module = net(CLASSES)
        truth = torch.bincount(batch.labels, minlength=CLASSES).tolist()
        for n in (12, None):
            sent = exchange_of(model, gradient_of(model, batch), n)
            found.append((sent, Knowledge(input=SPEC), truth))
        for local in TRAININGS if net is dense else TRAININGS[:2]:
            update = local_update(Broadcast(model), batch, local)
            sent = Exchange(broadcast=Broadcast(model), update=update, clients=(0,))
            found.append((sent, Knowledge(input=SPEC, local=local), truth))
    return tuple(found)


def outcome() -> tuple[int, int]:
    """Examples that the counts have right, and counts that are wrong and called certain."""
    right, misled = 0, 0
    for exchange, known, truth in cases():
        try:
            found = infer_label_counts(exchange, known)
        except NotApplicable:
            continue
        counts = found.counts.tolist()
        right += sum(min(one, other) for one, other in zip(counts, truth, strict=True))
        misled += found.certain and counts != truth
    return right, misled


@cache
def as_shipped() -> tuple[int, int]:
    return outcome()


def test_nearly_all_examples_are_counted_right() -> None:
    right, misled = as_shipped()
    assert right >= 0.85 * 12 * len(cases()) and misled == 0


@pytest.mark.parametrize("constant", CONSTANTS)
def test_constants_of_labels_lie_on_a_plateau(constant: str) -> None:
    for factor in (1 / 2, 2.0):
        with scaled(constant, factor):
            right, misled = outcome()
        assert misled == 0 and right >= as_shipped()[0] - 2, (factor, right, as_shipped())
