"""Signals of very different sizes, examples that rounding bends, and layers whose columns are the limit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.attacks.reading.peeling.builders import sent
from torch import Tensor, nn

from seepage.attacks.reading.exact_extraction import exact_extraction
from seepage.attacks.reading.peeling.bent import as_observed
from seepage.attacks.reading.peeling.readings import Readings
from seepage.attacks.reading.peeling.refine import refine
from seepage.attacks.reading.peeling.residual import Found, Residual
from seepage.attacks.reading.peeling.settle import settle
from seepage.attacks.reading.peeling.span import SignalSpan
from seepage.core.types import Batch, InputSpec, Modality
from seepage.models.gradients import LayerGradient
from seepage.models.layers import trace_linear_layers
from seepage.models.signals import BackwardSignals


def world(d: Tensor, x: Tensor) -> Residual:
    """The gradient of examples (k, m) with signals (k, N), summed."""
    return Residual(LayerGradient(d.T @ x, d.sum(0), scale=1.0, steps=1))


def found(d: Tensor, x: Tensor, *, exact: bool = True) -> Found:
    k = len(x)
    whole = torch.zeros(k, dtype=torch.long)
    return Found(
        features=x.clone(),
        labels=whole,
        signals=d.clone(),
        error=torch.zeros(k, dtype=torch.float64),
        doubt=torch.zeros(k, dtype=torch.float64),
        exact=torch.full((k,), exact),
        mismatch=torch.zeros(k, dtype=torch.float64),
        row=d.abs().argmax(1),
        support=whole + 1,
        round=whole,
        evidence=torch.zeros(k, dtype=torch.float64),
        times=torch.ones(k, dtype=torch.long),
        shared=torch.zeros(k, dtype=torch.bool),
    )


def sparse_signals(k: int, rows: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(k, rows, generator=generator) * (torch.rand(k, rows, generator=generator) < 0.4)


def test_tiny_signals_have_norms_and_noise_that_are_not_zero() -> None:
    x = torch.rand(3, 20, generator=torch.Generator().manual_seed(0))
    d = sparse_signals(3, 30) * 1e-28  # float32 has no square of it
    residual, everybody = world(d, x), found(d, x)
    index = (d != 0).any(0).nonzero().squeeze(1)
    rows = residual.scan(index, everybody)
    before = residual.scan(index, Found.none(residual.weight))
    assert torch.allclose(before.norm * 1e28, ((d.T @ (x * 1e28))[index]).double().norm(dim=1), rtol=1e-3)
    assert bool((rows.weight_noise > 0).all()) and bool((rows.noise > 0).all())
    assert bool((rows.norm <= 10 * rows.weight_noise).all())


def test_reviews_whose_losses_are_saturated_are_read_down_to_the_smallest() -> None:
    """p - y of 1e-2 to 1e-16 in one batch; neuron j fires for the reviews j, j + 1, ... only."""
    words, length, dim, reviews = 50, 12, 6, 5
    torch.manual_seed(0)
    embedding = nn.Embedding(words, dim)
    hidden, head = nn.Linear(length * dim, reviews), nn.Linear(reviews, 1)
    tokens = torch.randint(1, words, (reviews, length))
    tokens[:, 0] = torch.arange(reviews) + 1
    with torch.no_grad():
        embedding.weight.uniform_(0, 1)
        embedding.weight[1:6, 0] = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9])
        hidden.weight.zero_()
        hidden.weight[:, 0] = 1.0
        hidden.bias.copy_(-torch.tensor([0.0, 0.2, 0.4, 0.6, 0.8]))
        head.weight.fill_(-20.0)
        head.bias.zero_()
    model = nn.Sequential(embedding, nn.Flatten(), hidden, nn.ReLU(), head)
    spec = InputSpec(modality=Modality.TEXT, shape=(length,), num_classes=2, vocabulary=words)
    batch = Batch(tokens, torch.zeros(reviews, dtype=torch.long))
    sizes = model(tokens).detach().sigmoid().flatten()
    assert float(sizes.max() / sizes.min()) > 1e15
    exchange, known = sent(model, batch, spec, loss="binary_cross_entropy")
    result = exact_extraction().run([exchange], known)
    # The last review is alone at its neuron; each one before it is larger by orders where it joins.
    assert result.complete
    assert {tuple(r) for r in result.values[result.claimed].tolist()} == {tuple(r) for r in tokens.tolist()}


def test_an_example_that_no_explained_row_holds_stays_where_it_is() -> None:
    x = torch.rand(2, 8, generator=torch.Generator().manual_seed(0))
    d = torch.tensor([[1.0, 2.0, 0.0], [0.0, 0.0, 1.0]])
    both = found(d, x, exact=False)
    norm = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)  # row 2 still holds something else
    refined = refine(world(d, x), both, norm, torch.arange(3))
    assert bool(refined.features.isfinite().all())
    assert torch.equal(refined.features[1], x[1])
    assert torch.allclose(refined.features[0], x[0], atol=1e-6)


def test_columns_that_are_always_zero_do_not_hide_that_the_columns_are_the_limit() -> None:
    """40 examples of 12 values that are not always 0: their signals span more than the gradient shows."""
    generator = torch.Generator().manual_seed(0)
    x = torch.zeros(40, 60)
    x[:, 20:32] = torch.rand(40, 12, generator=generator)
    d = sparse_signals(40, 200)
    span = SignalSpan(world(d, x), torch.arange(200))
    assert span.rank == 0
    assert not span.refutes(d, x).any()
    few = SignalSpan(world(d[:6], x[:6]), torch.arange(200))
    assert few.rank == 6
    assert few.refutes(d, x).tolist() == [False] * 6 + [True] * 34


def linear_world() -> tuple[nn.Sequential, InputSpec, BackwardSignals]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 40), nn.ReLU(), nn.Linear(40, 1))
    spec = InputSpec(modality=Modality.TABULAR, shape=(16,), num_classes=2)
    layer = trace_linear_layers(model, spec)[0]
    return model, spec, BackwardSignals(model, layer, spec, loss="binary_cross_entropy")


@pytest.mark.parametrize("companion", [False, True])
def test_a_signal_is_taken_as_observed_only_where_the_example_is_alone(companion: bool) -> None:
    _, _, signals = linear_world()
    x, label = torch.rand(1, 16), torch.tensor([1])
    predicted = signals.at_all_rows(x, label)
    row = predicted.abs().argmax(1)
    observed = 1.01 * predicted[:, row[0]].double()
    seen = Readings(
        row=row,
        support=torch.ones(1, dtype=torch.long),
        bias=observed,
        noise=observed.abs() * 1e-7,
        error=torch.full_like(observed, 1e-7),
        features=x,
        exact=torch.ones(1, dtype=torch.bool),
        undecided=torch.zeros(1, dtype=torch.bool),
        spoiled=torch.zeros(1, dtype=torch.bool),
        moved=torch.full_like(observed, 7e-3 if companion else 1e-7),
        evidence=0 * observed,
    )
    corrected = predicted.clone()
    as_observed(corrected, seen, label, which=torch.ones(1, dtype=torch.bool), by=signals)
    assert torch.allclose(corrected, predicted * (1.0 if companion else 1.01), rtol=1e-5)


def test_a_signal_that_is_predicted_to_be_nothing_takes_the_other_label_s_direction() -> None:
    model, _, signals = linear_world()
    with torch.no_grad():
        model[2].bias.fill_(40.0)  # sigmoid rounds to 1
    x, label = torch.rand(1, 16), torch.tensor([1])
    assert not signals.at_all_rows(x, label).any()
    other = signals.at_all_rows(x, torch.tensor([0]))
    row = other.abs().argmax(1)
    observed = -3e-8 * other[:, row[0]].double()
    one = torch.ones(1, dtype=torch.bool)
    noise, size = observed.abs() * 1e-7, observed.abs()
    seen = Readings(row, row, observed, noise, size, x, one, ~one, ~one, 0 * observed, 0 * observed)
    corrected = torch.zeros_like(other)
    as_observed(corrected, seen, label, which=one, by=signals)
    assert torch.allclose(corrected * 1e8, -3.0 * other, rtol=1e-4)


def settled(d: Tensor, believed: Tensor, x: Tensor, row: int) -> tuple[int, Found]:
    """Settle one row; every activation is clearly positive, so only small changes are allowed."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(x.shape[1], d.shape[1]), nn.ReLU(), nn.Linear(d.shape[1], 3))
    nn.init.constant_(model[0].bias, 100.0)
    spec = InputSpec(modality=Modality.TABULAR, shape=(x.shape[1],), num_classes=3)
    signals = BackwardSignals(model, trace_linear_layers(model, spec)[0], spec, loss="cross_entropy")
    known = found(believed, x[: len(believed)])
    residual = world(d, x)
    rows = torch.tensor([row])
    noise = 10 * residual.noise(rows, known)[1]
    return settle(residual, known, rows, noise, signals), known


def test_small_changes_of_known_examples_settle_a_row_and_nothing_else_does() -> None:
    generator = torch.Generator().manual_seed(0)
    x, d = torch.rand(4, 30, generator=generator), 0.5 + torch.rand(4, 10, generator=generator)
    off = d[:3].clone()
    off[1, 6] *= 1.01
    count, after = settled(d[:3], off, x[:3], 6)
    assert count == 1 and torch.allclose(after.signals, d[:3], atol=1e-5)
    faint = replace_row(d, 3, 1e-3)  # an unknown example with a thousandth of the others' signal
    count, after = settled(faint, d[:3], x, 6)
    assert count == 0 and torch.equal(after.signals, d[:3])
    twice = d[:3].clone()
    twice[1, 6] *= 0.5  # as much as a copy of the example would leave: no rounding
    assert settled(d[:3], twice, x[:3], 6)[0] == 0


def replace_row(d: Tensor, row: int, factor: float) -> Tensor:
    changed = d.clone()
    changed[row] *= factor
    return changed


def test_readings_off_the_alphabet_are_dropped_and_a_full_selection_is_no_copy() -> None:
    none = Readings.none(torch.zeros(5, 7))
    one = torch.tensor([True, False, False])
    three = replace(
        Readings.joined([none]),
        **{k: torch.zeros(3, *v.shape[1:], dtype=v.dtype) for k, v in vars(none).items()},
    )
    three = replace(three, exact=one, undecided=one.roll(1), row=torch.arange(3))
    assert three.on_alphabet().row.tolist() == [0, 1]
    assert three.select(torch.arange(3)).features is three.features


def test_the_mean_of_examples_whose_losses_are_certain_is_not_taken_for_copies() -> None:
    """All fire the same neurons and p is 0 or 1: their gradient is that of three copies of their mean."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 3))
    with torch.no_grad():
        model[0].weight.abs_()
        model[2].weight.mul_(500)
    batch = Batch(torch.rand(3, 6) + 1, torch.zeros(3, dtype=torch.long))
    wrong = (model(batch.inputs).argmax(1)[:1] + 1) % 3
    batch = Batch(batch.inputs, wrong.expand(3).clone())
    spec = InputSpec(modality=Modality.TABULAR, shape=(6,), num_classes=3, value_range=None)
    exchange, known = sent(model, batch, spec)
    gradient = exchange.update.tensors
    mean = gradient["0.weight"][0] / gradient["0.bias"][0]
    assert torch.allclose(mean, batch.inputs.mean(0), rtol=1e-5)
    assert not exact_extraction().run([exchange], known).claimed.any()
