"""Convolutions whose kernel is their whole input, beside the dense layers that they are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from seepage.attacks import ATTACKS
from seepage.core.types import (
    Batch,
    Broadcast,
    Exchange,
    InputSpec,
    Knowledge,
    LocalTraining,
    Modality,
    Reconstruction,
)
from seepage.models.covering import as_dense
from seepage.protocol import local_update

IMAGE = InputSpec(modality=Modality.IMAGE, shape=(2, 6, 6), num_classes=4)
STEPS = LocalTraining(algorithm="fedavg", lr=0.1, epochs=2)


def convolutional() -> nn.Sequential:
    """Nothing but convolutions."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 60, 6), nn.ReLU(), nn.Conv2d(60, 4, 1), nn.Flatten())


def the_same(model: nn.Sequential) -> nn.Sequential:
    """With nn.Linear, written down by hand."""
    other = nn.Sequential(nn.Flatten(), nn.Linear(72, 60), nn.ReLU(), nn.Linear(60, 4))
    for ours, theirs in zip(other.parameters(), model.parameters(), strict=True):
        ours.data = theirs.detach().reshape(ours.shape).clone()
    return other


def pictures(count: int = 5) -> Batch:
    torch.manual_seed(1)
    return Batch((torch.rand(count, *IMAGE.shape) * 255).round() / 255, torch.arange(count) % 4)


def read(
    model: nn.Module,
    batch: Batch,
    local: LocalTraining | None = None,
    name: str = "exact_extraction",
    **more: str,
) -> Reconstruction:
    local = local or LocalTraining()
    sent = local_update(Broadcast(model), batch, local)
    seen = Exchange(broadcast=Broadcast(model), update=sent, clients=(0,))
    return ATTACKS[name](**more).run([seen], Knowledge(input=IMAGE, local=local))


@pytest.mark.parametrize("name", ["exact_extraction", "analytic_extraction"])
@pytest.mark.parametrize("local", [LocalTraining(), STEPS], ids=["one", "two"])
def test_a_covering_convolution_is_read_as_the_dense_layer_is(name: str, local: LocalTraining) -> None:
    model, batch = convolutional(), pictures()
    ours, theirs = read(model, batch, local, name), read(the_same(model), batch, local, name)
    assert len(ours) > 0 and ours.space == theirs.space
    torch.testing.assert_close(ours.values, theirs.values, atol=1e-5, rtol=0)
    assert ours.claimed is not None and torch.equal(ours.claimed, theirs.claimed)
    assert torch.equal(ours.label_counts, theirs.label_counts)


def test_the_whole_batch_is_claimed_and_right() -> None:
    batch = pictures()
    found = read(convolutional(), batch)
    assert found.complete and found.claimed is not None and bool(found.claimed.all())
    distance = torch.cdist(found.values.flatten(1), batch.inputs.flatten(1), p=torch.inf)
    assert float(distance.amin(0).max()) < 1e-5


def test_features_keep_the_name_of_the_convolution() -> None:
    torch.manual_seed(0)
    front = [nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*front, nn.Conv2d(3, 40, 3), nn.ReLU(), nn.Flatten(), nn.Linear(40, 4))
    found = read(model, pictures(3))
    assert found.space == "3" and len(found) > 0
    named = read(model, pictures(3), layer="3")
    assert torch.equal(named.values, found.values)


@pytest.mark.parametrize(
    ("layer", "behind", "spec"),
    [
        (nn.Conv1d(3, 5, 7), 5, InputSpec(modality=Modality.TABULAR, shape=(3, 7), num_classes=2)),
        (nn.Conv3d(1, 5, 2), 5, InputSpec(modality=Modality.TABULAR, shape=(1, 2, 2, 2), num_classes=2)),
        (
            nn.Conv2d(1, 5, 3, bias=False),
            5,
            InputSpec(modality=Modality.IMAGE, shape=(1, 3, 3), num_classes=2),
        ),
    ],
    ids=["1d", "3d", "no bias"],
)
def test_the_dense_model_computes_the_same(layer: nn.Module, behind: int, spec: InputSpec) -> None:
    model = nn.Sequential(layer, nn.Tanh(), nn.Flatten(), nn.Linear(behind, 2))
    dense = as_dense(model, spec)
    assert dense.renamed == {"0": "0.1"} and model[0] is layer
    inputs = torch.randn(4, *spec.shape)
    torch.testing.assert_close(dense.model(inputs), model(inputs))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.out = nn.Conv2d(1, 1, 1), nn.Linear(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        flat: Tensor = self.out(self.one(self.one(x)).flatten(1))
        return flat


@pytest.mark.parametrize(
    ("model", "side"),
    [
        (nn.Sequential(nn.Conv2d(1, 5, 2), nn.Flatten(), nn.LazyLinear(2)), 3),  # at four positions
        (
            nn.Sequential(nn.Conv2d(1, 5, 3, padding=1, stride=3), nn.Flatten(), nn.Linear(5, 2)),
            3,
        ),  # beside it
        (nn.Sequential(nn.Conv2d(1, 5, 2, dilation=2), nn.Flatten(), nn.Linear(5, 2)), 3),  # not all of it
        (Twice(), 1),
        (nn.Sequential(nn.Flatten(), nn.Linear(9, 2)), 3),
    ],
    ids=["positions", "padding", "dilation", "twice", "none"],
)
def test_other_convolutions_stay_what_they_are(model: nn.Module, side: int) -> None:
    spec = InputSpec(modality=Modality.IMAGE, shape=(1, side, side), num_classes=2)
    model(torch.zeros(1, *spec.shape))
    assert as_dense(model, spec).model is model
