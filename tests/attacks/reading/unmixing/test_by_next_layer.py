"""Examples behind any activation, told apart by what the next layer reads: against batches that are known."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from tests.attacks.reading.peeling.builders import errors, sent
from tests.plateaus import scaled
from torch import Tensor, nn

from seepage.attacks import ATTACKS
from seepage.attacks.reading.peeling.residual import Found, Residual
from seepage.attacks.reading.unmixing.by_next_layer import NextLayerUnmixer
from seepage.core.progress import Clock
from seepage.core.types import Batch, InputSpec, LocalTraining, Modality, Reconstruction
from seepage.models.between import next_linear
from seepage.models.gradients import layer_gradient
from seepage.models.layers import trace_linear_layers
from seepage.models.signals import BackwardSignals

SPEC = InputSpec(modality=Modality.IMAGE, shape=(1, 6, 6), num_classes=5, mean=(0.5,), std=(0.29,))
ACTIVATIONS = [nn.Tanh, nn.GELU, nn.SiLU, nn.LeakyReLU, nn.ReLU, nn.ELU]


def pictures(seed: int, count: int) -> Batch:
    torch.manual_seed(seed)
    raw = (torch.rand(count, 1, 6, 6) * 255).round() / 255
    return Batch(SPEC.to_model(raw), torch.randint(5, (count,)))


def network(activation: type[nn.Module], *middle: nn.Module, width: int = 60) -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(36, width), *middle, activation(), nn.Linear(width, 40), activation(),
        nn.Linear(40, 5),
    )  # fmt: skip


def read(model: nn.Module, batch: Batch, spec: InputSpec = SPEC, **how: object) -> tuple[Reconstruction, int]:
    """What was read, and how many of the claims are wrong."""
    result = ATTACKS["exact_extraction"]().run([(seen := sent(model, batch, spec, **how))[0]], seen[1])
    truth = spec.to_raw(batch.inputs)
    near = errors(result.values.float(), truth.float()) <= 1e-3
    assert result.claimed is not None
    return result, int((result.claimed & ~near.any(1)).sum())


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_whole_batch_is_claimed_behind_any_activation(activation: type[nn.Module]) -> None:
    for seed in (21, 22):
        batch = pictures(seed, 10)
        result, wrong = read(network(activation), batch)
        assert result.complete and result.claimed is not None
        assert int(result.claimed.sum()) == len(result) == 10 and wrong == 0
        assert result.label_counts is not None
        assert torch.equal(result.label_counts, torch.bincount(batch.labels, minlength=5))


def test_one_local_step_is_claimed_and_an_unknown_number_of_examples_is_read() -> None:
    torch.manual_seed(3)
    model, batch = network(nn.Tanh), pictures(23, 6)
    result, wrong = read(model, batch, training=LocalTraining(algorithm="fedavg", lr=0.1))
    assert result.complete and wrong == 0
    result, wrong = read(model, batch, tell_number=False)
    near = errors(result.values.float(), SPEC.to_raw(batch.inputs).float()) <= 1e-3
    assert bool(near.any(0).all()) and wrong == 0


def test_batch_norm_in_eval_mode_is_read_through() -> None:
    model = network(nn.ReLU, nn.BatchNorm1d(60))
    model[2].running_mean.normal_(std=0.2)
    model[2].running_var.uniform_(0.3, 1)
    result, wrong = read(model, pictures(24, 10))
    assert result.complete and wrong == 0
    assert any("next layer" in note for note in result.notes)


def test_values_off_a_grid_are_claimed_only_where_they_are_right() -> None:
    spec = replace(SPEC, modality=Modality.TABULAR, shape=(36,), value_range=None, mean=None, std=None)
    torch.manual_seed(5)
    x = torch.randn(8, 36)
    batch = Batch(x, torch.randint(5, (8,)))
    result, wrong = read(network(nn.GELU), batch, spec)
    assert result.claimed is not None and int(result.claimed.sum()) == 8 and wrong == 0
    near = Batch(torch.cat([x[:4], x[:4] + 1e-4 * torch.randn(4, 36)]), batch.labels[:4].repeat(2))
    assert read(network(nn.GELU), near, spec)[1] == 0, "copies that differ a little are told or not claimed"


def test_noise_is_not_taken_apart() -> None:
    torch.manual_seed(6)
    model, batch = network(nn.Tanh), pictures(26, 6)
    exchange, known = sent(model, batch, SPEC)
    noisy = {
        name: t + 0.05 * t.norm() / t.numel() ** 0.5 * torch.randn_like(t)
        for name, t in exchange.update.tensors.items()
    }
    exchange = replace(exchange, update=replace(exchange.update, tensors=noisy))
    result = ATTACKS["exact_extraction"]().run([exchange], known)
    assert result.claimed is not None and not bool(result.claimed.any())
    assert any("could not be taken apart" in note for note in result.notes)


@cache
def told_apart() -> tuple[Tensor, Tensor, Tensor]:
    """Examples, and the unmixer's features and signals of some of them."""
    torch.manual_seed(7)
    model, batch = network(nn.SiLU), pictures(27, 8)
    exchange, known = sent(model, batch, SPEC)
    first, second = trace_linear_layers(model, SPEC)[:2]
    signals, after = (BackwardSignals(model, each, SPEC, loss="cross_entropy") for each in (first, second))
    residuals = [Residual(layer_gradient(exchange, known, each)) for each in (first, second)]
    residuals[0].factor = 8.0
    between = next_linear(model, first, SPEC)
    assert between is not None
    unmixer = NextLayerUnmixer(signals, between, residuals[1], after, lambda u: torch.randn(4 * u, 36))
    none = Found.none(residuals[0].weight)
    found = unmixer.unmix(residuals[0], torch.arange(60), none, Clock(seconds=None))
    assert found is not None
    x = batch.inputs.flatten(1)
    which = torch.cdist(found.features, x).argmin(1)
    assert bool(((found.features - x[which]).norm(dim=1) <= found.error * x[which].norm(dim=1)).all())
    return found.signals, signals.at_all_rows(x, batch.labels)[which], found.error


def test_sizes_follow_from_the_rank_and_labels_from_the_column_space() -> None:
    ours, sent_back, error = told_apart()
    assert float((ours - sent_back).abs().max() / sent_back.abs().max()) < 1e-3
    assert float(error.max()) < 1e-3


DESCENT = "seepage.attacks.reading.unmixing.descent"
PLATEAU = {
    f"{DESCENT}:_SETTLED": (1 / 3, 3.0),
    f"{DESCENT}:_DAMPING": (1 / 10, 10.0),
    f"{DESCENT}:_SMALLER": (1 / 2, 2.0),
    f"{DESCENT}:_LARGER": (1 / 2, 2.0),
    "seepage.attacks.reading.unmixing.next_equations:_NEURONS_EACH": (2 / 3, 2.0),
}


@pytest.mark.parametrize("constant", PLATEAU)
def test_constants_of_the_descent_lie_on_a_plateau(constant: str) -> None:
    for factor in PLATEAU[constant]:
        for activation in (nn.Tanh, nn.LeakyReLU):
            torch.manual_seed(8)
            model = network(activation, width=150)
            with scaled(constant, factor):
                result, wrong = read(model, pictures(28, 12))
            assert result.complete and wrong == 0, (factor, activation)


@pytest.mark.parametrize("seed", [41, 42, 43])
def test_rows_of_a_table_are_claimed_together_behind_a_tanh(seed: int) -> None:
    """Off a grid, what is taken away leaves its error in the rest: all are told apart before any is."""
    spec = replace(SPEC, modality=Modality.TABULAR, shape=(36,), value_range=None, mean=None, std=None)
    torch.manual_seed(seed)
    numbers, categories = torch.randn(14, 6), torch.randint(10, (14, 3))
    x = torch.cat([numbers, nn.functional.one_hot(categories, 10).flatten(1).float()], dim=1)
    result, wrong = read(network(nn.Tanh, width=100), Batch(x, torch.randint(5, (14,))), spec)
    assert result.complete and result.claimed is not None and int(result.claimed.sum()) == 14 and wrong == 0
