"""The pieces of peeling, each against something computed another way."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from tests.attacks.reading.peeling.builders import sent
from torch import nn

from seepage.attacks.reading.peeling.codes import NumberCode, TokenCode
from seepage.attacks.reading.peeling.match import match_labels
from seepage.attacks.reading.peeling.refine import refine
from seepage.attacks.reading.peeling.residual import Found, Residual
from seepage.attacks.reading.scale import find_scale
from seepage.core.types import Batch, InputSpec, Modality
from seepage.models.gradients import layer_gradient
from seepage.models.hooks import layer_input
from seepage.models.layers import LinearLayer, trace_linear_layers
from seepage.models.signals import BackwardSignals
from seepage.protocol import LOSSES


def net(outputs: int = 4, seed: int = 0) -> tuple[nn.Sequential, InputSpec, LinearLayer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(9, 30), nn.ReLU(), nn.Linear(30, 7), nn.ReLU(), nn.Linear(7, outputs))
    spec = InputSpec(modality=Modality.TABULAR, shape=(9,), num_classes=max(2, outputs))
    return model, spec, trace_linear_layers(model, spec)[0]


@pytest.mark.parametrize(
    ("loss", "outputs"), [("cross_entropy", 4), ("cross_entropy_sum", 4), ("binary_cross_entropy", 1)]
)
def test_signals_are_the_bias_gradients_of_single_examples(loss: str, outputs: int) -> None:
    model, spec, layer = net(outputs)
    signals = BackwardSignals(model, layer, spec, loss=loss)
    x, y = torch.rand(5, 9), torch.tensor([0, 1, 1, 0, 1])
    expected = []
    for j in range(5):
        value = LOSSES[loss](model(x[j : j + 1]), y[j : j + 1])
        expected.append(torch.autograd.grad(value, model[0].bias)[0])
    assert torch.allclose(signals.at_all_rows(x, y), torch.stack(expected), atol=1e-7)
    rows = torch.tensor([3, 1, 4, 1, 5])
    one = signals.at_one_row(x, rows).gather(1, y.unsqueeze(1)).squeeze(1)
    assert torch.allclose(one, torch.stack(expected)[torch.arange(5), rows], atol=1e-7)


def test_what_a_deeper_layer_reads_is_what_the_layers_before_it_make() -> None:
    model, spec, _ = net()
    x = torch.rand(5, 9)
    assert torch.allclose(
        layer_input(model, trace_linear_layers(model, spec)[1].name, x), model[1](model[0](x))
    )


def all_found(n: int = 6, error: float = 0.0) -> tuple[Residual, Found, torch.Tensor]:
    """Every example of a batch as if found, with its features wrong by `error`."""
    model, spec, layer = net()
    x, y = torch.rand(n, 9), torch.randint(4, (n,))
    exchange, known = sent(model, Batch(x, y), spec)
    residual = Residual(layer_gradient(exchange, known, layer))
    residual.factor = float(n)
    found = Found.none(residual.weight)
    signals = BackwardSignals(model, layer, spec, loss="cross_entropy").at_all_rows(x, y)
    more = {
        "features": x + error * torch.randn_like(x),
        "labels": y,
        "signals": signals,
        "error": torch.full((n,), error),
        "doubt": torch.zeros(n),
        "exact": torch.zeros(n, dtype=torch.bool),
        "mismatch": torch.zeros(n),
        "row": torch.zeros(n, dtype=torch.long),
        "support": torch.ones(n, dtype=torch.long),
        "round": torch.zeros(n, dtype=torch.long),
        "evidence": torch.zeros(n, dtype=torch.float64),
        "times": torch.ones(n, dtype=torch.long),
        "shared": torch.zeros(n, dtype=torch.bool),
    }
    return residual, found.plus(Found(**more)), x


def test_the_residual_of_a_batch_minus_all_its_examples_is_rounding() -> None:
    residual, found, _ = all_found()
    rows = torch.arange(30)
    scanned = residual.scan(rows, found)
    assert float((scanned.norm / scanned.weight_noise.clamp_min(1e-12)).max()) < 5
    without = residual.weights(rows, found.select(torch.arange(5)))
    last = found.signals[5].unsqueeze(1) * found.features[5]
    assert torch.allclose(without, last, atol=1e-6)


def test_least_squares_removes_errors_that_all_rows_together_can_see() -> None:
    residual, found, x = all_found(error=2e-6)
    rows = torch.arange(30)
    better = refine(residual, found, residual.scan(rows, found).norm, rows)
    before, after = ((f.features - x).norm() for f in (found, better))
    assert float(after) < 0.5 * float(before)


def test_exact_examples_are_not_moved() -> None:
    residual, found, _ = all_found(error=2e-6)
    found.exact[:3] = True
    rows = torch.arange(30)
    better = refine(residual, found, residual.scan(rows, found).norm, rows)
    assert torch.equal(better.features[:3], found.features[:3])
    assert not torch.equal(better.features[3:], found.features[3:])


def test_pixels_are_rounded_to_eight_bits_and_mixtures_are_not() -> None:
    torch.manual_seed(0)
    spec = InputSpec(modality=Modality.IMAGE, shape=(3, 8, 8), num_classes=2)
    true = torch.randint(256, (4, 192)) / 255
    readings = torch.cat([true + 1e-4 * torch.randn(4, 192).clamp(-3, 3), 0.37 * true[:2] + 0.63 * true[2:]])
    snapped = NumberCode(spec).snap(readings)
    assert snapped.exact.tolist() == [True] * 4 + [False] * 2
    assert torch.equal(snapped.features[:4], true) and torch.equal(snapped.features[4:], readings[4:])


def test_white_pixels_alone_do_not_make_a_mixture_look_exact() -> None:
    # 15/16 of a black and white picture lies on a grid of 16 levels everywhere.
    spec = InputSpec(modality=Modality.IMAGE, shape=(1, 16, 16), num_classes=2)
    picture = (torch.rand(1, 256) > 0.5).float()
    snapped = NumberCode(spec).snap(picture * 15 / 16)
    assert not snapped.exact.any() and bool(snapped.undecided.all())


def test_values_outside_the_range_are_impossible() -> None:
    spec = InputSpec(modality=Modality.TABULAR, shape=(3,), num_classes=2)
    snapped = NumberCode(spec).snap(torch.tensor([[0.1, 0.2, 0.3], [0.1, 0.2, 1.3]]))
    assert snapped.possible.tolist() == [True, False]


def test_tokens_are_looked_up_exactly() -> None:
    torch.manual_seed(0)
    table = torch.rand(300, 16)
    spec = InputSpec(modality=Modality.TEXT, shape=(20,), num_classes=2, vocabulary=300)
    ids = torch.randint(300, (2, 20))
    features = table[ids].flatten(1)
    code = TokenCode(spec, table)
    snapped = code.snap(torch.cat([features + 1e-4, features.mean(0, keepdim=True)]))
    assert snapped.exact.tolist() == [True, True, False]
    assert torch.equal(code.inputs(snapped.features[:2]), ids)


def test_the_scale_is_what_most_readings_agree_on() -> None:
    generator = torch.Generator().manual_seed(0)
    predicted = torch.randn(40, 10, generator=generator)
    label = torch.randint(10, (40,), generator=generator)
    observed = predicted.gather(1, label.unsqueeze(1)).squeeze(1) / 271.3
    observed[15:] = torch.randn(25, generator=generator)  # mixtures: agree with nothing
    scale = find_scale(predicted, observed, expected=100.0)
    assert scale is not None and scale.num_examples is None
    assert abs(scale.kappa - 271.3) < 1e-2


def test_readings_that_agree_on_nothing_give_no_scale() -> None:
    generator = torch.Generator().manual_seed(1)
    predicted, observed = torch.randn(60, 10, generator=generator), torch.randn(60, generator=generator)
    assert find_scale(predicted, observed, expected=None) is None
    fallback = find_scale(predicted, observed, expected=32.0)
    assert fallback is not None and (fallback.kappa, fallback.votes) == (32.0, 0)


def test_three_copies_are_matched_by_the_sum_of_their_signals() -> None:
    predicted = torch.tensor([[1.0, -2.3, 4.7]])
    tolerance = torch.tensor([1e-4])
    match = match_labels(predicted, torch.tensor([1.0 + 4.7 + 4.7]), tolerance, copies=tolerance)
    assert match.labels == [(0, 2, 2)]
    alone = match_labels(predicted, torch.tensor([1.0 + 4.7]), tolerance, copies=torch.zeros(1))
    assert alone.labels == [()]


def test_a_label_that_another_fits_as_well_is_not_believed() -> None:
    predicted = torch.tensor([[1.0, 1.00001, -3.0]])
    match = match_labels(predicted, torch.tensor([1.000005]), torch.tensor([1e-3]), copies=torch.zeros(1))
    assert match.labels == [()]


def test_noise_estimates_grow_with_what_was_subtracted() -> None:
    residual, found, _ = all_found()
    rows = torch.arange(30)
    noise = [residual.noise(rows, found.select(torch.arange(k)))[0].sum() for k in (0, 2, 4, 6)]
    assert all(a < b for a, b in pairwise(noise))


def test_values_on_a_finer_grid_are_not_rounded_to_a_coarser_one() -> None:
    """The mean of three 8-bit channels lies at most a third of a step off the 8-bit grid everywhere."""
    spec = InputSpec(modality=Modality.IMAGE, shape=(1, 20, 20), num_classes=2)
    thirds = torch.randint(766, (5, 400), generator=torch.Generator().manual_seed(0)) / 765
    code = NumberCode(spec)
    snapped = code.snap(thirds)
    assert not snapped.exact.any()
    assert torch.equal(snapped.features, thirds)
    eight_bit = torch.randint(256, (5, 400), generator=torch.Generator().manual_seed(1)) / 255
    noisy = eight_bit + 1e-4 * torch.randn(5, 400, generator=torch.Generator().manual_seed(2))
    assert NumberCode(spec).snap(noisy).exact.all()
    assert torch.allclose(NumberCode(spec).snap(noisy).features, eight_bit, atol=1e-7)
