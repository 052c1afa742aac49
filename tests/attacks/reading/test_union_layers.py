"""Models in which several layers read the input beside each other: what one does not show, another may."""

from __future__ import annotations

import pytest
import torch
from tests.attacks.reading.peeling.builders import errors, sent
from torch import Tensor, nn

from seepage.attacks.reading.analytic_extraction import analytic_extraction
from seepage.attacks.reading.exact_extraction import exact_extraction
from seepage.core.types import Batch, InputSpec, Modality
from seepage.metrics.exact import EXACT_TOLERANCE
from seepage.models.choice import layers_to_read

COLUMNS, CLASSES = 40, 5
SPEC = InputSpec(modality=Modality.TABULAR, shape=(COLUMNS,), num_classes=CLASSES, value_range=(0.0, 1.0))


class WideAndDeep(nn.Module):
    """A linear part runs before the hidden layer, and every example reaches all of its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(COLUMNS, CLASSES)
        self.deep = nn.Sequential(nn.Linear(COLUMNS, 96), nn.ReLU(), nn.Linear(96, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.wide(x) + self.deep(x)


class Highway(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.carry = nn.Linear(COLUMNS, COLUMNS), nn.Linear(COLUMNS, COLUMNS)
        self.head = nn.Linear(COLUMNS, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x).sigmoid()
        return self.head(gate * self.carry(x).relu() + (1 - gate) * x)


class Either(nn.Module):
    """Each example goes one of two ways; with `together`, the batch decides which."""

    def __init__(self, *, together: bool = False) -> None:
        super().__init__()
        self.low, self.high = nn.Linear(COLUMNS, 96), nn.Linear(COLUMNS, 96)
        self.head, self.together = nn.Linear(96, CLASSES), together

    def forward(self, x: Tensor) -> Tensor:
        if self.together:
            return self.head((self.high if x.mean() > 0.5 else self.low)(x).relu())
        high = (x.mean(1, keepdim=True) > 0.5).to(x)
        return self.head((high * self.high(x) + (1 - high) * self.low(x)).relu())


def batch(count: int, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    values = (torch.rand(count, COLUMNS, generator=generator) * 255).round() / 255
    return Batch(values, torch.randint(CLASSES, (count,), generator=generator))


def single_rows(model: nn.Module, secret: Batch) -> set[int]:
    """Examples that some neuron of a layer behind a ReLU fires for alone: division reads them (eq. 5)."""
    alone: set[int] = set()
    for layer in (m for m in model.modules() if isinstance(m, nn.Linear) and m.in_features == COLUMNS):
        fires = layer(secret.inputs) > 0
        alone |= {int(fires[:, i].nonzero()) for i in (fires.sum(0) == 1).nonzero().flatten().tolist()}
    return alone


@pytest.mark.parametrize("build", [WideAndDeep, Highway, Either])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_any_layer_shows_is_read(build, seed):
    torch.manual_seed(seed)
    model, secret = build(), batch(6, seed)
    exchange, known = sent(model, secret, SPEC)
    whole = exact_extraction().run([exchange], known)
    off = errors(whole.values, secret.inputs) <= EXACT_TOLERANCE
    assert bool(off.any(0).all())
    assert bool(off[whole.claimed].any(1).all())
    assert int(whole.claimed.sum()) == len(secret)  # each once, though two layers show it
    assert int(whole.support.sum()) <= whole.rows.active


def test_single_rows_behind_a_layer_without_a_relu_are_divided():
    torch.manual_seed(0)
    model, secret = WideAndDeep(), batch(6, 0)
    alone = single_rows(model.deep, secret)
    assert alone
    exchange, known = sent(model, secret, SPEC)
    found = analytic_extraction().run([exchange], known)
    read = (errors(found.values, secret.inputs) <= EXACT_TOLERANCE).any(0)
    assert all(bool(read[i]) for i in alone)


def test_no_certificate_covers_an_example_that_goes_another_way():
    """Read alone, one of the two layers has nothing left; the update has."""
    torch.manual_seed(0)
    model, secret = Either(), batch(6, 0)
    exchange, known = sent(model, secret, SPEC)
    one = exact_extraction(layer="low").run([exchange], known)
    both = exact_extraction().run([exchange], known)
    assert len(one) < len(secret) == int(both.claimed.sum())
    assert both.complete


@pytest.mark.parametrize("attack", [analytic_extraction, exact_extraction])
def test_a_way_that_only_some_batches_take_breaks_nothing(attack):
    """Which of the two layers the server sees in use depends on its own made-up batch."""
    read = 0
    for seed in range(4):
        torch.manual_seed(seed)
        model, secret = Either(together=True), batch(4, seed)
        exchange, known = sent(model, secret, SPEC)
        found = attack().run([exchange], known)
        right = errors(found.values, secret.inputs) <= EXACT_TOLERANCE
        assert bool(right[found.claimed].any(1).all())
        read += int(right.any(0).sum())
    assert read


def test_layers_with_a_relu_come_first_and_a_named_one_stands_alone():
    model = WideAndDeep()
    assert [layer.name for layer in layers_to_read(model, SPEC, None)] == ["deep.0", "wide"]
    assert [layer.name for layer in layers_to_read(model, SPEC, "wide")] == ["wide"]
