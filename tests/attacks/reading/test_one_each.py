"""Means of pictures that are nearly alike are not claimed, whatever number the client declares.

A grid alone does not tell: the mean of two that are an even number of grey steps apart lies on it as well.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.attacks.reading.test_claims import (
    NAMES,
    SIZE,
    SPEC,
    claimed,
    drawn,
    false_claims,
    network,
    pictures,
    played,
)
from torch import Tensor, nn

from seepage.attacks import ATTACKS
from seepage.attacks.reading.near_copies import NearCopies
from seepage.attacks.reading.one_each import Counted, Received, one_each
from seepage.attacks.reading.peeling.residual import Residual
from seepage.attacks.reading.peeling.span import SignalSpan
from seepage.attacks.reading.scale import Scale
from seepage.core.types import Batch, Broadcast, Exchange, Knowledge, LocalTraining, Modality, Reconstruction
from seepage.models.gradients import LayerGradient
from seepage.models.layers import trace_linear_layers
from seepage.models.signals import BackwardSignals
from seepage.protocol import local_update

FEDAVG = LocalTraining(algorithm="fedavg", lr=0.1)
N = 6


def apart(x: Tensor, steps: int) -> Tensor:
    """The same pictures, each with one value moved by so many grey steps."""
    moved = x.clone().flatten(1)
    column = moved.shape[1] // 2
    moved[:, column] += torch.where(moved[:, column] < 0.5, steps / 255, -steps / 255)
    return moved.reshape(x.shape)


def pairs(seed: int, steps: int, *, on_grid: bool, few: bool = False) -> Batch:
    half = drawn(pictures(N, seed, on_grid=on_grid), seed)
    paired = half.select(slice(0, 2)) if few else half
    return Batch.concat([half, Batch(apart(paired.inputs, steps), paired.labels)])


def averaged(name: str, model: nn.Module, batch: Batch, declared: int) -> Reconstruction:
    """What a server reads from a difference of weights."""
    update = replace(local_update(Broadcast(model), batch, FEDAVG), num_examples=declared)
    seen = Exchange(broadcast=Broadcast(model), update=update, clients=(0,))
    return ATTACKS[name]().run([seen], Knowledge(input=SPEC, local=FEDAVG))


@pytest.mark.parametrize("declared", [2 * N, N, 0])
@pytest.mark.parametrize("name", NAMES)
def test_the_mean_of_two_that_lies_on_the_grid_is_not_claimed(name: str, declared: int) -> None:
    batch = pairs(0, 2, on_grid=True)
    assert false_claims(played(name, network(0), batch, declared=declared), batch) == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_few_such_pairs_do_not_spoil_the_others(name: str) -> None:
    batch = pairs(0, 2, on_grid=True, few=True)
    for result in (played(name, network(0), batch), averaged(name, network(0), batch, len(batch))):
        assert false_claims(result, batch) == 0 and not result.complete
        assert name != "exact_extraction" or claimed(result, batch) >= N - 2


@pytest.mark.parametrize("name", NAMES)
def test_off_a_grid_a_difference_of_weights_does_not_rest_on_the_declared_number(name: str) -> None:
    batch = pairs(0, 1, on_grid=False)
    result = averaged(name, network(0), batch, N)
    assert result.claimed is not None and not bool(result.claimed.any()) and not result.complete


@pytest.mark.parametrize("declared", [2 * N, 0])
def test_without_a_bias_neither(declared: int) -> None:
    torch.manual_seed(0)
    first = nn.Linear(3 * SIZE**2, 300, bias=False)
    model = nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Linear(300, 5))
    for name in NAMES:
        batch = pairs(0, 2, on_grid=True)
        assert false_claims(played(name, model, batch, declared=declared), batch) == 0


def test_without_a_bias_a_few_pairs_do_not_spoil_the_others() -> None:
    """exact_extraction claims no less than analytic_extraction, whose rows it reads first."""
    torch.manual_seed(0)
    first = nn.Linear(3 * SIZE**2, 300, bias=False)
    model = nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Linear(300, 5))
    batch = pairs(0, 2, on_grid=True, few=True)
    plain, exact = (played(name, model, batch) for name in NAMES)
    assert false_claims(plain, batch) == false_claims(exact, batch) == 0
    assert claimed(exact, batch) >= claimed(plain, batch) > 0


@pytest.mark.parametrize("declared", [2 * N, N // 2, 0])
def test_products_prove_honest_pictures_whatever_number_is_declared(declared: int) -> None:
    batch = drawn(pictures(N, 1, on_grid=True), 1)
    result = played("exact_extraction", network(1), batch, declared=declared)
    assert false_claims(result, batch) == 0 and claimed(result, batch) == N


def test_a_clipped_update_of_as_many_as_were_declared_shows_its_rank() -> None:
    batch = drawn(pictures(N, 0, on_grid=True), 0)
    scaled = played("exact_extraction", network(0), batch, change=lambda t: t * 0.3)
    assert claimed(scaled, batch) == N
    twice = pairs(0, 2, on_grid=True)
    assert false_claims(played("exact_extraction", network(0), twice, change=lambda t: t * 0.3), twice) == 0


def test_a_copy_that_fires_another_neuron_is_seen_in_the_rank() -> None:
    """Against the gradient of the pair itself: a neuron at 0 gives the copy away, one at 1 does not."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 2))
    spec = replace(SPEC, shape=(12,), num_classes=2)
    x, y, step = torch.rand(1, 12), torch.tensor([1]), 1e-3
    for at_zero in (False, True):
        with torch.no_grad():
            model[0].weight[:, 5] = 0.5
            z = x @ model[0].weight.T
            model[0].bias.copy_(torch.where(z > 0, 1.0, -1.0).squeeze(0))
            if at_zero:
                model[0].bias[3] = -z[0, 3]
        signals = BackwardSignals(model, trace_linear_layers(model, spec)[0], spec, loss="cross_entropy")
        move = torch.zeros(1, 12)
        move[0, 5] = step
        ranks = []
        for inputs in (x, torch.cat([x + move, x - move])):
            sent = local_update(Broadcast(model), Batch(inputs, y.expand(len(inputs))), LocalTraining())
            both = (sent.tensors["0.weight"], sent.tensors["0.bias"])
            ranks.append(SignalSpan(Residual(LayerGradient(*both, scale=1.0, steps=1)), torch.arange(40)))
        near = NearCopies(signals, x, y, torch.tensor([0]), torch.tensor([step]))
        assert [span.rank for span in ranks] == [1, 2 if at_zero else 1]
        assert near.shown(ranks[0]) is at_zero


@pytest.mark.parametrize(("kappa", "whole", "believed"), [(3.7, None, True), (6.0, 6, False)])
def test_another_whole_number_than_the_declared_one_is_no_clipping(
    kappa: float, whole: int | None, believed: bool
) -> None:
    """Twelve declared and a rank of twelve; the readings count as six, as means of pairs do."""
    model = network(0)
    half = drawn(pictures(N, 0, on_grid=True), 0)
    (layer, *_) = trace_linear_layers(model, SPEC)
    signals = BackwardSignals(model, layer, SPEC, loss="cross_entropy")
    gradient = LayerGradient(torch.rand(40, 3 * SIZE**2), torch.rand(40), scale=1.0, steps=1)
    span = SignalSpan(Residual(gradient), torch.arange(40))
    span.rank = 2 * N
    none = torch.zeros(N, dtype=torch.bool)
    counted = Counted(
        features=half.inputs.flatten(1),
        labels=half.labels,
        row=torch.zeros(N, dtype=torch.long),
        on_grid=~none,
        lone=none,
        evidence=torch.zeros(N, dtype=torch.float64),
        times=torch.ones(N, dtype=torch.long),
        step=torch.full((N,), 1 / 255, dtype=torch.float64),
    )
    received = Received(
        scale=Scale(kappa, whole, N),
        expected=2.0 * N,
        summed=False,
        computed=None,
        fine=True,
        signals=signals,
        span=lambda: span,
        left=lambda rows: torch.zeros(len(rows), 3 * SIZE**2, dtype=torch.float64),
    )
    assert one_each(counted, received).single.tolist() == [believed] * N


ROWS = 10


def table(seed: int) -> Batch:
    """Six numbers and codes of four categories: a row that one of them is alone in has few digits to tell."""
    generator = torch.Generator().manual_seed(seed)
    codes = [
        nn.functional.one_hot(torch.randint(n, (ROWS,), generator=generator), n) for n in (9, 16, 20, 30)
    ]
    numbers = torch.randn(ROWS, 6, generator=generator)
    return Batch(torch.cat([numbers, *codes], dim=1), torch.randint(2, (ROWS,), generator=generator))


def read_table(seed: int, batch: Batch, declared: int | None = None) -> Reconstruction:
    torch.manual_seed(seed)
    first, deeper = nn.Linear(81, 100), [nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU()]
    model = nn.Sequential(first, nn.ReLU(), *deeper, nn.Linear(100, 2))
    spec = replace(SPEC, modality=Modality.TABULAR, shape=(81,), num_classes=2, value_range=None)
    return played("exact_extraction", model, batch, declared=declared, spec=spec)


def test_products_too_few_to_prove_anything_say_no_less_than_none() -> None:
    """Lone rows of a table have six numbers: they pass, and the rank and the declared number decide."""
    results = [read_table(seed, table(seed)) for seed in range(4)]
    assert [int(r.claimed.sum()) for r in results if r.claimed is not None] == [ROWS] * 4
    assert all(r.complete and false_claims(r, table(seed)) == 0 for seed, r in enumerate(results))


@pytest.mark.parametrize("step", [0.02, 0.2, 0.0])
@pytest.mark.parametrize("declared", [ROWS, ROWS // 2, 0])
def test_rows_that_differ_in_one_number_or_not_at_all_are_no_false_claims(step: float, declared: int) -> None:
    """The second half are the first with one number moved; what half as many explain says its condition."""
    for seed in range(2):
        half = table(seed).select(slice(0, ROWS // 2))
        near = half.inputs.clone()
        near[:, 2] += step
        batch = Batch.concat([half, Batch(near, half.labels)])
        result = read_table(seed, batch, declared)
        assert false_claims(result, batch) == 0 or (declared == ROWS // 2 and result.if_declared)
