"""Pairs that are nearly alike, and of which the client counts each once, beside a batch of their means."""

from __future__ import annotations

import pytest
import torch
from tests.attacks.reading.test_claims import (
    NAMES,
    SPEC,
    claimed,
    drawn,
    false_claims,
    network,
    pictures,
    played,
)
from tests.attacks.reading.test_one_each import FEDAVG, N, apart, averaged, pairs
from torch import Tensor, nn

from seepage.attacks.reading import one_each
from seepage.attacks.reading.half_fired import half_fired
from seepage.attacks.reading.peeling.residual import _last_digit
from seepage.core.types import Batch, Broadcast
from seepage.models.layers import trace_linear_layers
from seepage.models.signals import BackwardSignals
from seepage.protocol import local_update


def between(model: nn.Sequential, batch: Batch) -> Tensor:
    """(N, neurons) bool: the neuron fires for one of the pair alone."""
    fires = model[1](batch.inputs.flatten(1)) > 0
    return fires[:N] != fires[N:]


def means(batch: Batch) -> Batch:
    return Batch((batch.inputs[:N] + batch.inputs[N:]) / 2, batch.labels[:N])


def free_of_edges(seed: int) -> tuple[nn.Sequential, Batch]:
    """A network none of whose neurons lies between the two of any pair."""
    model, batch = network(seed), pairs(seed, 2, on_grid=True)
    with torch.no_grad():
        at = between(model, batch).any(0)
        model[1].bias[at] -= 1e-3
    assert not bool(between(model, batch).any())
    return model, batch


@pytest.mark.parametrize("seed", range(3))
def test_nothing_but_a_neuron_between_two_parts_a_pair_from_its_mean(seed: int) -> None:
    """Weight differences of both, number by number: no reader can tell what is not there.

    They may differ by the last digits of the weights and by the rounding of the gradient itself.
    """
    model, batch = free_of_edges(seed)
    sent = [local_update(Broadcast(model), each, FEDAVG).tensors for each in (batch, means(batch))]
    for name in ("1.weight", "1.bias"):
        old, eps = model.get_parameter(name).detach(), torch.finfo(torch.float32).eps
        digit = _last_digit(torch.maximum(old.abs(), (old + sent[0][name]).abs()), eps)
        rounding = digit + 8 * eps * sent[0][name].abs().max()
        differ = (sent[0][name] - sent[1][name]).abs()
        assert bool((differ <= rounding).all()) and float((differ == 0).double().mean()) > 0.9


def test_what_takes_the_declared_number_at_its_word_says_so() -> None:
    model, batch = free_of_edges(0)
    honest = averaged("exact_extraction", model, means(batch), N)
    assert claimed(honest, means(batch)) == N and honest.if_declared
    fooled = averaged("exact_extraction", model, batch, N)
    assert false_claims(fooled, batch) == N and fooled.if_declared
    nothing = averaged("exact_extraction", model, batch, 2 * N)
    assert false_claims(nothing, batch) == 0 and not nothing.if_declared


@pytest.mark.parametrize("name", NAMES)
def test_what_products_prove_does_not_take_it(name: str) -> None:
    """Of a gradient as it was computed, whatever was declared."""
    model, batch = free_of_edges(0)
    proven = played(name, model, means(batch))
    assert proven.claimed is not None and bool(proven.claimed.any()) and not proven.if_declared


@pytest.mark.parametrize("name", NAMES)
def test_a_neuron_between_two_of_a_pair_takes_back_all_claims(name: str) -> None:
    """One is enough: the number that all claims rest on is then wrong."""
    model, batch = free_of_edges(0)
    with torch.no_grad():
        z = model[1](means(batch).inputs.flatten(1))
        column = batch.inputs[0].numel() // 2
        # A neuron that no other picture fires, and of the pair that fires it most one alone.
        slope = model[1].weight[:, column].abs()
        first, second = z.topk(2, dim=0).values
        row = int(torch.where(first - second > 0.02, slope, 0.0).argmax())
        model[1].bias[row] -= first[row]
    assert between(model, batch)[:, row].sum() == 1
    result = averaged(name, model, batch, N)
    assert result.claimed is not None and len(result) > 0 and not bool(result.claimed.any())
    assert not result.if_declared


def test_half_an_example_is_told_from_one_and_from_none() -> None:
    """Against a gradient that is made of halves, wholes and nothing."""
    torch.manual_seed(0)
    model = network(0)
    x, y = pictures(1, 0, on_grid=True).flatten(1), torch.tensor([2])
    with torch.no_grad():
        model[1].bias[7] -= float(x @ model[1].weight[7] + model[1].bias[7]) - 1e-5  # just on
        model[1].bias[9] -= float(x @ model[1].weight[9] + model[1].bias[9]) + 1e-5  # just off
    signals = BackwardSignals(model, trace_linear_layers(model, SPEC)[0], SPEC, loss="cross_entropy")
    step = torch.tensor([1 / 255])
    own = signals.at_all_rows(x, y)[0]
    on = signals.at_one_row(x + model[1].weight[9] * 1e-4, torch.tensor([9]))[0, 2]

    def seen(rows: dict[int, float]) -> bool:
        held = torch.zeros(len(own))
        for row, share in rows.items():
            held[row] = share
        return half_fired(signals, x, y, step, lambda index: held[index].unsqueeze(1) * x)

    assert not seen({}) and not seen({3: 0.5 * float(own[3])})  # row 3 is not near its edge
    assert seen({7: -0.5 * float(own[7])}) and seen({9: 0.5 * float(on)})
    # All or nothing is what rounding at the edge does.
    assert not seen({7: -float(own[7])}) and not seen({9: float(on)})


def test_honest_weight_differences_lose_no_claim_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def claims() -> list[int]:
        batches = [drawn(pictures(N, seed, on_grid=True), seed) for seed in range(5)]
        found = [averaged("exact_extraction", network(s), batch, N) for s, batch in enumerate(batches)]
        return [claimed(result, batch) for result, batch in zip(found, batches, strict=True)]

    looked = claims()
    monkeypatch.setattr(one_each, "half_fired", lambda *_: False)
    assert looked == claims() and sum(looked) > 4 * N


def test_copies_farther_apart_are_seen_too() -> None:
    model, half = network(1), drawn(pictures(N, 1, on_grid=True), 1)
    batch = Batch.concat([half, Batch(apart(half.inputs, 8), half.labels)])
    assert bool(between(model, batch).any())
    assert false_claims(averaged("exact_extraction", model, batch, N), batch) == 0
