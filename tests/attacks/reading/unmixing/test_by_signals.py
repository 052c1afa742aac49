"""Examples behind one hidden layer, told apart by the signals the network computes: against known batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.attacks.reading.peeling.builders import errors, sent
from tests.attacks.reading.unmixing.test_by_next_layer import SPEC, pictures, read
from tests.plateaus import scaled
from torch import nn

from seepage.attacks import ATTACKS
from seepage.attacks.reading.peeling.certifier import Certifier
from seepage.attacks.reading.peeling.residual import Found
from seepage.core.types import Batch, LocalTraining, Modality

SMOOTH = [nn.Tanh, nn.GELU, nn.SiLU, nn.ELU, nn.Softplus]
BY_SIGNALS = "seepage.attacks.reading.unmixing.by_signals"
DESCENT = "seepage.attacks.reading.unmixing.descent"


def one_hidden(activation: type[nn.Module], *, width: int = 60) -> nn.Sequential:
    """Five classes: of more examples, the output layer's gradient does not hold the span."""
    torch.manual_seed(2)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, width), activation(), nn.Linear(width, 5))


@pytest.mark.parametrize("activation", SMOOTH)
def test_a_batch_larger_than_the_number_of_classes_is_claimed(activation: type[nn.Module]) -> None:
    batch = pictures(31, 12)
    result, wrong = read(one_hidden(activation), batch)
    assert result.complete and wrong == 0
    assert result.claimed is not None and int(result.claimed.sum()) == len(result) == 12
    assert result.label_counts is not None
    assert torch.equal(result.label_counts, torch.bincount(batch.labels, minlength=5))
    assert any("as the network computes it" in note for note in result.notes)


def test_layer_norm_behind_the_layer_is_read_through() -> None:
    """No linear layer reads one neuron each there, which the next layer's gradient would need."""
    torch.manual_seed(4)
    middle = (nn.LayerNorm(60), nn.GELU(), nn.Linear(60, 40), nn.GELU())
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 60), *middle, nn.Linear(40, 5))
    result, wrong = read(model, pictures(32, 10))
    assert result.complete and wrong == 0
    assert any("as the network computes it" in note for note in result.notes)


def test_one_local_step_and_a_sum_of_losses_are_read_too() -> None:
    model, batch = one_hidden(nn.SiLU), pictures(33, 8)
    result, wrong = read(model, batch, training=LocalTraining(algorithm="fedavg", lr=0.1))
    assert result.complete and wrong == 0
    assert read(model, batch, loss="cross_entropy_sum")[1] == 0


def test_a_single_logit_is_read_too() -> None:
    spec = replace(SPEC, num_classes=2)
    torch.manual_seed(5)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 60), nn.GELU(), nn.Linear(60, 1))
    batch = pictures(34, 8)
    batch = Batch(batch.inputs, batch.labels % 2)
    result, wrong = read(model, batch, spec, loss="binary_cross_entropy")
    assert wrong == 0 and result.complete


def test_values_off_a_grid_are_never_claimed_wrongly() -> None:
    spec = replace(SPEC, modality=Modality.TABULAR, shape=(36,), value_range=None, mean=None, std=None)
    torch.manual_seed(6)
    x, y = torch.randn(8, 36), torch.randint(5, (8,))
    result, wrong = read(one_hidden(nn.GELU), Batch(x, y), spec)
    assert wrong == 0
    near = torch.cdist(result.values.float(), x) <= 1e-3
    assert bool(near.any(0).all()), "all of them are read"
    copies = Batch(torch.cat([x[:4], x[:4] + 1e-4 * torch.randn(4, 36)]), y[:4].repeat(2))
    assert read(one_hidden(nn.GELU), copies, spec)[1] == 0


def test_noise_is_not_taken_apart() -> None:
    torch.manual_seed(7)
    exchange, known = sent(one_hidden(nn.Tanh), pictures(35, 8), SPEC)
    noisy = {
        name: t + 0.05 * t.norm() / t.numel() ** 0.5 * torch.randn_like(t)
        for name, t in exchange.update.tensors.items()
    }
    exchange = replace(exchange, update=replace(exchange.update, tensors=noisy))
    result = ATTACKS["exact_extraction"]().run([exchange], known)
    assert result.claimed is not None and not bool(result.claimed.any())


def test_signals_are_never_taken_for_bent_ones_where_nothing_has_a_kink(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two near copies of one label came within a hundredth of one example of another label (MNIST)."""
    asked: list[bool] = []
    certify = Certifier.certify

    def remember(self: Certifier, *args: Any, bent: bool = False, **how: Any) -> Found:
        asked.append(bent)
        return certify(self, *args, bent=bent, **how)

    monkeypatch.setattr(Certifier, "certify", remember)
    read(one_hidden(nn.GELU), pictures(38, 12))
    assert asked and not any(asked)
    asked.clear()
    read(one_hidden(nn.ReLU), pictures(38, 12))
    assert any(asked), "behind a ReLU they may be"


def test_work_beyond_the_limit_is_not_begun_and_said() -> None:
    model, batch = one_hidden(nn.GELU), pictures(36, 12)
    with scaled(f"{BY_SIGNALS}:_MOST_WORK", 1e-6):
        result, _ = read(model, batch)
    assert not result.complete
    assert any("could not be taken apart" in note for note in result.notes)


@pytest.mark.parametrize(
    ("constant", "factors"),
    {
        f"{BY_SIGNALS}:_STARTS": (1 / 2, 2.0),
        f"{BY_SIGNALS}:_IN_VAIN": (2 / 3, 2.0),
        f"{DESCENT}:_DAMPING": (1 / 10, 10.0),
        f"{DESCENT}:_SETTLED": (1 / 3, 3.0),
    }.items(),
)
def test_constants_lie_on_a_plateau(constant: str, factors: tuple[float, ...]) -> None:
    for factor in factors:
        for activation in (nn.Tanh, nn.GELU):
            batch = pictures(37, 12)
            with scaled(constant, factor):
                result, wrong = read(one_hidden(activation), batch)
            assert result.complete and wrong == 0, (factor, activation)
            near = errors(result.values.float(), SPEC.to_raw(batch.inputs).float()) <= 1e-3
            assert bool(near.any(0).all())
