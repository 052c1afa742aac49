"""Label counts are called certain only where they are right: counted on batches large enough to go wrong."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from seepage.core.types import Batch, Broadcast, Exchange, InputSpec, Knowledge, LocalTraining, Modality
from seepage.data import Dataset, load_data
from seepage.labels import infer_label_counts
from seepage.labels.counts import LabelEstimate
from seepage.labels.doubt import other_probes
from seepage.models.loading import build_model
from seepage.protocol import local_update


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_data("digits")


def estimate_of(
    model: nn.Module,
    batch: Batch,
    spec: InputSpec,
    *,
    method: str = "auto",
    sent: bool = True,
    **known: object,
) -> LabelEstimate:
    update = local_update(Broadcast(model), batch, LocalTraining())
    if not sent:
        update = type(update)(kind=update.kind, tensors=update.tensors, num_examples=None)
    exchange = Exchange(broadcast=Broadcast(model), update=update, clients=(0,))
    return infer_label_counts(exchange, Knowledge(input=spec, **known), method=method)


def judged(digits: Dataset, size: int, seeds: range, *, public: int = 0) -> tuple[int, int, int]:
    """How many of the estimates are exact, certain, and certain but wrong."""
    exact = certain = false = 0
    for seed in seeds:
        order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(seed))
        batch = digits.batch(order[:size])
        auxiliary = digits.batch(order[size : size + public]) if public else None
        model = build_model("mlp", digits.spec, seed=seed)
        found = estimate_of(model, batch, digits.spec, auxiliary=auxiliary)
        right = torch.equal(found.counts, torch.bincount(batch.labels, minlength=10))
        exact, certain = exact + right, certain + found.certain
        false += found.certain and not right
        assert found.certain != any("uncertain" in note for note in found.notes)
    return exact, certain, false


def test_wrong_counts_of_large_batches_are_called_uncertain(digits: Dataset) -> None:
    exact, _, false = judged(digits, 400, range(8))
    assert exact < 8  # else the batches are not hard enough to show anything
    assert false == 0


def test_counts_of_small_batches_are_still_certain(digits: Dataset) -> None:
    assert judged(digits, 10, range(8)) == (8, 8, 0)


def test_public_examples_settle_what_noise_does_not(digits: Dataset) -> None:
    without, given = judged(digits, 200, range(4)), judged(digits, 200, range(4), public=256)
    assert given == (4, 4, 0)
    assert without[1] < given[1] and without[2] == 0


def test_two_classes_whose_counts_lie_near_integers_by_chance_are_not_certain() -> None:
    """A trained model is sure of its data and not of noise: being near an integer proves little."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(400, 6, generator=g)
    data = Batch(x, (x[:, 0] > 0).long())
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 2))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(100):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(data.inputs), data.labels).backward()
        optimiser.step()
    optimiser.zero_grad()
    spec = InputSpec(modality=Modality.TABULAR, shape=(6,), num_classes=2, value_range=None)
    wrong = 0
    for start in range(0, 400, 40):
        batch = data.select(slice(start, start + 40))
        found = estimate_of(model, batch, spec)
        right = torch.equal(found.counts, torch.bincount(batch.labels, minlength=2))
        wrong += not right
        assert right or not found.certain
    assert wrong > 0


def test_what_proves_one_examples_label_and_what_does_not(digits: Dataset) -> None:
    spec = digits.spec
    one = digits.batch(torch.tensor([3]))
    assert estimate_of(build_model("mlp", spec, seed=1), one, spec).certain
    two = InputSpec(modality=Modality.IMAGE, shape=spec.shape, num_classes=2)
    no_bias = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 2, bias=False))
    assert not estimate_of(no_bias, Batch(one.inputs, torch.tensor([1])), two).certain


@pytest.mark.parametrize("options", [{"method": "llg"}, {"sent": False}])
def test_rules_of_thumb_and_a_guessed_number_of_examples_prove_nothing(
    digits: Dataset, options: dict
) -> None:
    batch = digits.batch(torch.arange(6))
    found = estimate_of(build_model("mlp", digits.spec, seed=1), batch, digits.spec, **options)
    assert not found.certain


def test_other_probes_are_what_they_are_said_to_be() -> None:
    spec = InputSpec(modality=Modality.IMAGE, shape=(2, 3, 3), num_classes=2, mean=(0.5, 0.1), std=(0.5, 0.2))
    flat, low, high = (probes.inputs for probes in other_probes(Knowledge(input=spec), nn.Linear(18, 2)))
    raw: Tensor = spec.to_raw(flat)
    assert torch.allclose(raw, raw[:, :1, :1, :1].expand_as(raw), atol=1e-6) and raw.std() > 0.2
    assert torch.allclose(spec.to_raw(low), torch.zeros(1), atol=1e-6)
    assert torch.allclose(spec.to_raw(high), torch.ones(1), atol=1e-6)
