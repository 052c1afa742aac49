"""Whole batches without a backward signal: several local steps, dropout; and what must not be claimed."""

from __future__ import annotations

import pytest
import torch
from tests.attacks.reading.peeling.builders import errors
from torch import Tensor, nn

from seepage.attacks.reading.exact_extraction import exact_extraction
from seepage.attacks.reading.patterns.elimination import eliminate
from seepage.attacks.reading.peeling.residual import Residual
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
from seepage.models.gradients import LayerGradient, layer_gradient
from seepage.models.layers import trace_linear_layers
from seepage.protocol import local_update

SPEC = InputSpec(modality=Modality.IMAGE, shape=(1, 12, 12), num_classes=5, value_range=(0.0, 1.0))


def pictures(count: int, *, seed: int = 0) -> Batch:
    """Smooth ones of 8 bits, bright and dark: neurons that few switch on exist."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 1, 4, 4, generator=generator)
    smooth = nn.functional.interpolate(coarse, size=12, mode="bicubic").clamp(0, 1)
    return Batch((smooth * 255).round() / 255, torch.randint(5, (count,), generator=generator))


def network(*, dropout: float = 0.0, width: int = 300) -> nn.Sequential:
    torch.manual_seed(1)
    layers = [nn.Flatten(), nn.Linear(144, width), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(width, 30), nn.ReLU(), nn.Linear(30, 5))


def read(model: nn.Module, batch: Batch, local: LocalTraining) -> Reconstruction:
    sent = local_update(Broadcast(model), batch, local)
    seen = Exchange(broadcast=Broadcast(model), update=sent, clients=(0,))
    return exact_extraction().run([seen], Knowledge(input=SPEC, local=local))


def false_claims(result: Reconstruction, batch: Batch) -> int:
    return int((errors(result.values[result.claimed], batch.inputs) > 1e-4).all(1).sum())


@pytest.mark.parametrize(
    "local",
    [
        LocalTraining(algorithm="fedavg", lr=0.1, epochs=5),
        LocalTraining(algorithm="fedavg", lr=0.05, epochs=3, momentum=0.9, weight_decay=0.01),
        LocalTraining(algorithm="fedavg", lr=0.1, epochs=2, batch_size=3, shuffle_seed=7),
    ],
    ids=["steps", "momentum and decay", "mini-batches"],
)
def test_several_local_steps_give_the_whole_batch_away(local: LocalTraining) -> None:
    batch = pictures(8)
    result = read(network(), batch, local)
    assert result.complete
    assert int(result.claimed.sum()) == 8
    assert float(errors(result.values[result.claimed], batch.inputs).amin(0).max()) <= 1e-6


def test_dropout_gives_the_whole_batch_away() -> None:
    batch = pictures(8)
    result = read(network(dropout=0.5, width=400), batch, LocalTraining(batch_norm="train"))
    assert int(result.claimed.sum()) == 8 and false_claims(result, batch) == 0


@pytest.mark.parametrize("difference", ["brighter by two", "one pixel by two", "noise of two"])
def test_two_that_are_nearly_alike_are_not_claimed_as_their_mean(difference: str) -> None:
    """The mean of x and x + 2 steps lies on the grid, and the two send nearly the same."""
    one = pictures(4)
    other = (one.inputs * 255).round().clamp(2, 253)
    one = Batch(other / 255, one.labels)
    if difference == "brighter by two":
        other = other + 2
    elif difference == "one pixel by two":
        other[:, 0, 5, 5] += 2
    else:
        other = other + 2 * torch.randint(-1, 2, other.shape, generator=torch.Generator().manual_seed(3))
    batch = Batch(torch.cat([one.inputs, other / 255]), one.labels.repeat(2))
    result = read(network(), batch, LocalTraining(algorithm="fedavg", lr=0.01, epochs=5))
    assert false_claims(result, batch) == 0


def test_what_is_on_no_alphabet_is_not_claimed_after_several_steps() -> None:
    batch = pictures(6)
    noisy = batch.inputs + 0.3 / 255 * torch.rand(
        batch.inputs.shape, generator=torch.Generator().manual_seed(0)
    )
    result = read(network(), Batch(noisy, batch.labels), LocalTraining(algorithm="fedavg", lr=0.1, epochs=5))
    assert not result.claimed.any()


def test_an_unknown_example_follows_from_rows_that_it_shares_with_known_ones() -> None:
    """Signals are arbitrary numbers here: nothing but the neurons that are off gives it away."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(4, 30, generator=generator).double()
    on = torch.rand(4, 40, generator=generator) < 0.6
    on[3, :12] = True
    d = torch.randn(4, 40, generator=generator).double() * on
    rows = LayerGradient(d.T @ x, d.sum(0), scale=1.0, steps=1)
    found = eliminate(Residual(rows), torch.arange(40), x[:3], on[:3])
    assert found is not None and found.unknown == 1
    assert float((found.values[0] - x[3]).abs().max()) < 1e-9
    assert int(found.support[0]) == int(on[3].sum())


def test_a_known_example_that_is_on_wherever_the_unknown_one_is_leaves_it_open() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(2, 30, generator=generator).double()
    on = torch.ones(2, 40, dtype=torch.bool)
    d = torch.randn(2, 40, generator=generator).double()
    rows = LayerGradient(d.T @ x, d.sum(0), scale=1.0, steps=1)
    assert eliminate(Residual(rows), torch.arange(40), x[:1], on[:1]) is None


def test_weight_decay_of_several_steps_is_taken_out_to_the_last_digit() -> None:
    """Dead inputs have no gradient: what their weights lose is all decay, and the reading must be 0."""
    model = network()
    local = LocalTraining(algorithm="fedavg", lr=0.1, epochs=4, momentum=0.9, weight_decay=0.1)
    batch = pictures(3)
    inputs: Tensor = batch.inputs.clone()
    inputs[:, :, 0] = 0.0
    sent = local_update(Broadcast(model), Batch(inputs, batch.labels), local)
    seen = Exchange(broadcast=Broadcast(model), update=sent, clients=(0,))
    layer = trace_linear_layers(model, SPEC)[0]
    gradient = layer_gradient(seen, Knowledge(input=SPEC, local=local), layer)
    assert float(sent.tensors["1.weight"][:, :12].abs().max()) > 1e-3
    assert float(gradient.weight[:, :12].abs().max()) < 1e-7
