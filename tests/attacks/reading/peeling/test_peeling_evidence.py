"""What peeling takes for proof: the span of the signals, rounding of deltas, no neuron of one's own."""

from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_wine
from tests.attacks.reading.peeling.builders import errors, sent
from torch import nn

from seepage.attacks.base import pool
from seepage.attacks.reading.exact_extraction import exact_extraction
from seepage.attacks.reading.peeling.residual import delta_rounding
from seepage.attacks.reading.scale import find_scale
from seepage.attacks.traps.trap_weights import trap_weights
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
from seepage.protocol import local_update


def test_delta_rounding_is_what_float32_weights_do() -> None:
    """Against the error of a real step, in double precision."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(3, 20_000, generator=generator)
    step = 1e-3 * torch.rand(weight.shape, generator=generator)
    error = (weight - step).double() - (weight.double() - step.double())
    rows, _ = delta_rounding(weight, weight[0])
    assert torch.allclose(error.norm(dim=1).float(), rows, rtol=0.03)


def crowded(n: int, *, width: int, size: int, seed: int) -> tuple[nn.Sequential, Batch, InputSpec]:
    """Every neuron fires for about half of all inputs, so that none of n examples is alone anywhere."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(size, width), nn.ReLU(), nn.Linear(width, 40), nn.ReLU())
    model.append(nn.Linear(40, 10))
    with torch.no_grad():
        responses = torch.rand(512, size) @ model[0].weight.T
        model[0].bias.copy_(-responses.median(0).values)
    batch = Batch(torch.rand(n, size), torch.randint(10, (n,)))
    return model, batch, InputSpec(modality=Modality.TABULAR, shape=(size,), num_classes=10)


def test_a_batch_in_which_no_neuron_is_alone_is_unmixed() -> None:
    model, batch, spec = crowded(16, width=400, size=64, seed=51)
    fires = model[0](batch.inputs) > 0
    assert not bool((fires.sum(0) == 1).any())
    result = exact_extraction().run([(seen := sent(model, batch, spec))[0]], seen[1])
    distance = errors(result.values[result.claimed], batch.inputs)
    assert distance.shape == (16, 16) and float(distance.amin(0).max()) < 1e-3
    assert result.complete is True
    assert any("no neuron of their own" in note for note in result.notes)


def test_where_unmixing_fails_it_says_what_it_would_take() -> None:
    model, batch, spec = crowded(40, width=60, size=64, seed=3)
    result = exact_extraction().run([(seen := sent(model, batch, spec))[0]], seen[1])
    assert not result.claimed.any() and result.complete is False
    assert any("could not be unmixed" in note for note in result.notes)


@pytest.mark.parametrize(("batch_size", "width"), [(12, 32), (12, 256), (24, 64)])
def test_no_row_of_a_table_without_range_is_claimed_falsely(batch_size: int, width: int) -> None:
    """Wine: 13 standardised columns, so that mixtures of similar rows abound."""
    bundle = load_wine()
    rows = torch.tensor(bundle.data, dtype=torch.float32)
    inputs = (rows - rows.mean(0)) / rows.std(0)
    spec = InputSpec(modality=Modality.TABULAR, shape=(13,), num_classes=3, value_range=None)
    for seed in range(4):
        torch.manual_seed(seed)
        chosen = torch.randperm(len(inputs))[:batch_size]
        batch = Batch(inputs[chosen], torch.tensor(bundle.target)[chosen])
        model = nn.Sequential(nn.Linear(13, width), nn.ReLU(), nn.Linear(width, 3))
        result = exact_extraction().run([(seen := sent(model, batch, spec))[0]], seen[1])
        claimed = result.values[result.claimed]
        assert len(claimed) == 0 or float(errors(claimed, batch.inputs).amin(1).max()) < 1e-2


def test_ratios_that_lie_near_each_other_by_accident_are_no_common_factor() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        predicted, observed = torch.randn(64, 3, generator=generator), torch.randn(64, generator=generator)
        assert find_scale(predicted, observed, expected=None) is None


@pytest.mark.parametrize("lr", [0.1, 0.01])
def test_traps_are_peeled_from_the_weights_after_one_local_step(lr: float) -> None:
    generator = torch.Generator().manual_seed(1)
    spec = InputSpec(modality=Modality.IMAGE, shape=(1, 8, 8), num_classes=10)
    inputs = (torch.rand(16, 1, 8, 8, generator=generator) * 255).round() / 255
    batch = Batch(inputs, torch.randint(10, (16,), generator=generator))
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    local = LocalTraining(algorithm="fedavg", lr=lr)
    known = Knowledge(input=spec, local=local)
    attack = trap_weights(read="peel")
    crafted = attack.craft(model, (), known)
    assert crafted is not None
    update = local_update(Broadcast(crafted.model), batch, local)
    seen = Exchange(broadcast=Broadcast(crafted.model), update=update, clients=(0,), secret=crafted.secret)
    result = attack.run([seen], known)
    distance = errors(result.values[result.claimed], batch.inputs)
    assert float(distance.amin(1).max()) < 1e-5 and int((distance < 1e-5).any(0).sum()) >= 15


def test_pooled_updates_are_complete_if_each_is() -> None:
    def one(complete: bool | None) -> Reconstruction:
        return Reconstruction(values=torch.zeros(1, 2), complete=complete)

    assert pool([one(True), one(True)]).complete is True
    assert pool([one(True), one(False)]).complete is False
    assert pool([one(True), one(None)]).complete is None
