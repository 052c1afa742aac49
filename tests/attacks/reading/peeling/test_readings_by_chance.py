"""Mixtures of nearly alike examples that happen to look like one, and how improbable that is.

Two examples x and y that differ by a grey step in one value read as x + w (y - x), with any w. Where w is
near a whole number every value lies near the grid, at a picture that need not be in the batch.
"""

from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_digits
from tests.attacks.reading.peeling.builders import errors, sent
from torch import Tensor, nn

from seepage.attacks.reading.claims import Candidates, vouch
from seepage.attacks.reading.exact_extraction import exact_extraction
from seepage.attacks.reading.peeling.codes import NumberCode
from seepage.attacks.reading.peeling.labelling import Labeller
from seepage.attacks.reading.peeling.reader import RowReader
from seepage.attacks.reading.peeling.readings import Readings
from seepage.attacks.reading.peeling.residual import Found, Residual
from seepage.attacks.reading.scale import Scale
from seepage.core.types import Batch, InputSpec, Modality
from seepage.metrics.exact import EXACT_TOLERANCE
from seepage.models.gradients import LayerGradient, layer_gradient
from seepage.models.layers import trace_linear_layers
from seepage.models.precision import Precision
from seepage.models.signals import BackwardSignals

SPEC = InputSpec(modality=Modality.IMAGE, shape=(1, 8, 8), num_classes=10)
ROUNDING = 1e-7


def digits(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    bundle = load_digits()
    chosen = torch.randperm(len(bundle.target), generator=generator)[:n]
    inputs = torch.tensor(bundle.images, dtype=torch.float32)[chosen].unsqueeze(1) / 16
    return inputs, torch.tensor(bundle.target)[chosen]


def with_near_copies(n: int, seed: int) -> tuple[nn.Sequential, Batch]:
    """n digits and n copies with one grey step in one pixel and labels of their own."""
    generator = torch.Generator().manual_seed(seed)
    inputs, labels = digits(2 * n, generator)
    inputs, labels = inputs[:n], labels[:n]
    copies = inputs.flatten(1).clone()
    for copy in copies:
        place = int(torch.randint(64, (1,), generator=generator))
        copy[place] += 1 / 16 if float(copy[place]) < 0.5 else -1 / 16
    others = torch.randint(10, (n,), generator=generator)
    batch = Batch(torch.cat([inputs, copies.reshape(inputs.shape)]), torch.cat([labels, others]))
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 1000), nn.ReLU(), nn.Linear(1000, 10))
    return model, batch


@pytest.mark.parametrize("seed", [34, 89])
def test_a_mixture_near_a_whole_number_of_steps_is_not_claimed(seed: int) -> None:
    """In these two of 150 batches one was, from a row that held a pair with a weight near 2, or near 5."""
    model, batch = with_near_copies(10, seed)
    exchange, known = sent(model, batch, SPEC)
    result = exact_extraction().run([exchange], known)
    assert int(result.claimed.sum()) > 5
    nearest = errors(result.values[result.claimed], batch.inputs).amin(1)
    assert float(nearest.max()) <= EXACT_TOLERANCE


def picture() -> Tensor:
    """(64,) 12 different grey levels, and black and white, which say nothing."""
    return torch.tensor([*range(2, 14), *[0] * 26, *[16] * 26]) / 16


@pytest.mark.parametrize("differ", [1, 3, 12])
@pytest.mark.parametrize("weight", [-1.03, 0.04, 0.95, 2.03])
def test_values_that_are_off_by_one_and_the_same_number_prove_nothing(differ: int, weight: float) -> None:
    """Where x and y differ by one step in a few values, or in all that are grey."""
    x = picture()
    y = x.clone()
    y[:differ] += 1 / 16
    read = (x + weight * (y - x)).unsqueeze(0)
    snapped = NumberCode(SPEC).snap(read, torch.tensor([ROUNDING]))
    assert not snapped.exact.any() and snapped.spoiled.all()


def test_rounding_and_noise_that_changes_every_value_are_rounded_away() -> None:
    x, generator = picture().unsqueeze(0), torch.Generator().manual_seed(0)
    rounded = x + ROUNDING * (2 * torch.rand(x.shape, generator=generator) - 1)
    noisy = x + 2e-3 * torch.randn(x.shape, generator=generator).clamp(-2, 2)
    one_off = x.clone()
    one_off[0, 0] += 3e-5
    for read, noise in ((rounded, 0.0), (noisy, 0.0), (one_off, 1e-5)):
        snapped = NumberCode(SPEC).snap(read, torch.tensor([ROUNDING]), torch.tensor([noise]))
        assert snapped.exact.all() and torch.equal(snapped.features, x)
    assert not NumberCode(SPEC).snap(one_off, torch.tensor([ROUNDING])).exact.any()


def first_readings(model: nn.Sequential, batch: Batch) -> tuple[RowReader, Readings]:
    exchange, known = sent(model, batch, SPEC)
    layer = trace_linear_layers(model, SPEC)[0]
    residual = Residual(layer_gradient(exchange, known, layer))
    residual.factor = float(len(batch))
    reader = RowReader(residual, NumberCode(SPEC), BackwardSignals(model, layer, SPEC, loss=known.loss))
    nothing = Found.none(residual.weight)
    return reader, reader.read(residual.scan(torch.arange(1000), nothing), nothing)


def test_chances_are_counted_where_near_copies_are_seen() -> None:
    model, batch = with_near_copies(10, 0)
    among_copies = first_readings(model, batch)[0].accidents
    without = first_readings(model, Batch(batch.inputs[:10], batch.labels[:10]))[0].accidents
    assert among_copies > 10 * without


def test_the_more_mixtures_may_lie_on_the_grid_the_closer_a_label_must_fit() -> None:
    model, batch = with_near_copies(10, 0)
    reader, readings = first_readings(model, Batch(batch.inputs[:10], batch.labels[:10]))
    readings = readings.select(readings.exact.nonzero().squeeze(1))
    size = reader.signals.at_one_row(readings.features, readings.row).abs().amax(1)
    off = Readings(**(vars(readings) | {"bias": readings.bias + 5e-4 * size}))

    def labelled(given: Readings, accidents: float) -> int:
        labeller = Labeller(reader.signals, kappa=1.0)
        labeller.scale = Scale(1.0, 1, 2)
        found = labeller.label(given, accidents=accidents)
        return 0 if found is None else sum(len(labels) for labels in found.match.labels)

    assert labelled(readings, 0.0) == labelled(readings, 100.0) > 0
    assert labelled(off, 0.0) > 0 == labelled(off, 100.0)


class NearlyCertain(BackwardSignals):
    """Signals at any row where the model is nearly certain of label 0: 5e-4 of those of label 1."""

    def __init__(self) -> None:
        self.rounding = 2e-6
        self.precision = Precision.of_type(torch.float32)

    def at_one_row(self, features: Tensor, rows: Tensor) -> Tensor:
        return torch.tensor([[5e-4, 1.0]], dtype=torch.float64).expand(len(rows), 2)


def test_a_faint_signal_must_fit_by_its_own_size() -> None:
    """Off a grid: the second reading is 1.6 times the signal, though only 3e-4 of the largest label's off.

    The third and fourth are off by 6e-4 and 2e-4 of themselves, which a row with a thousandth of another
    example may show. The last is off by as much, but it is the product of one example.
    """
    no, few = torch.zeros(5, dtype=torch.bool), torch.full((5,), 1e-7, dtype=torch.float64)
    readings = Readings(
        row=torch.arange(5),
        support=torch.full((5,), 2),
        bias=torch.tensor([5e-4 + 4e-8, 8e-4, 5e-4 + 3e-7, 5e-4 + 1e-7, 5e-4 + 1e-7], dtype=torch.float64),
        noise=few / 100,
        error=few,
        features=torch.zeros(5, 64),
        exact=no,
        undecided=~no,
        spoiled=no,
        moved=few,
        evidence=torch.tensor([0.0, 0.0, 0.0, 0.0, -20.0], dtype=torch.float64),
    )
    labeller = Labeller(NearlyCertain(), kappa=1.0)
    labeller.scale = Scale(1.0, 1, 2)
    found = labeller.label(readings)
    assert found is not None and found.match.labels == [(0,), (), (), (), (0,)]


class Silent(NearlyCertain):
    """Three labels that could all have sent something, and as many rows without a signal as it is told."""

    def __init__(self, silent: int) -> None:
        super().__init__()
        self.silent = silent

    def at_one_row(self, features: Tensor, rows: Tensor) -> Tensor:
        return torch.tensor([[-0.7, 0.4, 0.3]], dtype=torch.float64).expand(len(rows), 3)

    def at_all_rows(self, features: Tensor, labels: Tensor) -> Tensor:
        return (torch.arange(6) >= self.silent).double().expand(len(features), 6)


@pytest.mark.parametrize(("support", "silent", "believed"), [(1, 2, 1), (1, 0, 0), (1, 6, 0), (3, 0, 1)])
def test_where_every_example_reaches_every_row_a_label_that_fits_is_no_evidence(
    support: int, silent: int, believed: int
) -> None:
    """Behind a leaky ReLU all rows are mixtures: of a thousand one has some label's signal by accident.

    Rows that agree are other evidence, and a loss that is saturated says nothing about the rows.
    """
    one, few = torch.ones(1, dtype=torch.bool), torch.full((1,), 1e-7, dtype=torch.float64)
    readings = Readings(
        row=torch.tensor([4]),
        support=torch.tensor([support]),
        bias=torch.tensor([0.4], dtype=torch.float64),
        noise=few / 100,
        error=few,
        features=torch.zeros(1, 64),
        exact=~one,
        undecided=one,
        spoiled=~one,
        moved=few,
        evidence=0 * few,
    )
    labeller = Labeller(Silent(silent), kappa=1.0)
    labeller.scale = Scale(1.0, 1, 2)
    found = labeller.label(readings)
    assert found is not None and len(found.match.labels[0]) == believed


class Told(BackwardSignals):
    """Signals of three examples at their rows 0, 1 and 2, label 1; label 0 has the opposite ones."""

    def __init__(self, sent: Tensor) -> None:
        self.rounding = 2e-6
        self.precision = Precision.of_type(torch.float32)
        self.sent = sent
        self.loss = "cross_entropy_sum"  # what one counts is known

    def at_one_row(self, features: Tensor, rows: Tensor) -> Tensor:
        own = self.sent.diagonal()[rows]
        return torch.stack([-own, own], dim=1)

    def at_all_rows(self, features: Tensor, labels: Tensor) -> Tensor:
        return self.sent[features[:, 0].long()] * (2.0 * labels - 1.0).unsqueeze(1)


@pytest.mark.parametrize("on_alphabet", [False, True])
@pytest.mark.parametrize(("share", "vouched"), [(0.0, True), (5e-4, True), (2e-3, False), (1.0, False)])
def test_of_two_that_cannot_both_be_alone_at_their_rows_neither_is_claimed(
    share: float, vouched: bool, on_alphabet: bool
) -> None:
    """The first fires at the second's row, with so much of its signal; an alphabet proves either."""
    sent = torch.tensor([0.7, -0.4, 0.9], dtype=torch.float64).diag()
    sent[0, 1] = share * 0.4
    candidates = Candidates(
        rows=torch.arange(3),
        support=torch.full((3,), 4),
        features=torch.arange(3.0).unsqueeze(1).expand(3, 64),
        on_alphabet=torch.full((3,), on_alphabet),
        spoiled=torch.zeros(3, dtype=torch.bool),
        bound=torch.full((3,), 1e-7, dtype=torch.float64),
        unit=1.0,
        all_agree=False,
        evidence=None,
    )
    gradient = LayerGradient(torch.ones(3, 64), sent.diagonal().float() / 8, scale=1.0, steps=1)
    claims = vouch(candidates, gradient, Told(sent), kappa=8.0)
    either = vouched or on_alphabet
    assert claims.claimed.tolist() == [either, either, True]


@pytest.mark.parametrize(("apart", "vouched"), [(1.5e-7, True), (3e-7, False)])
def test_two_readings_of_one_example_do_not_speak_against_each_other(apart: float, vouched: bool) -> None:
    """Rows 0 and 1 show the same example, each within 1e-7; rows that differ by more show two."""
    sent = torch.tensor([0.7, -0.4, 0.9], dtype=torch.float64).diag()
    sent[0, 1] = sent[1, 1]
    features = torch.tensor([0.0, 0.0, 2.0], dtype=torch.float64).unsqueeze(1).repeat(1, 64)
    features[0, 5] += apart

    class Twice(Told):
        def at_all_rows(self, features: Tensor, labels: Tensor) -> Tensor:
            return self.sent * (2.0 * labels - 1.0).unsqueeze(1)

    candidates = Candidates(
        rows=torch.arange(3),
        support=torch.full((3,), 4),
        features=features,
        on_alphabet=torch.zeros(3, dtype=torch.bool),
        spoiled=torch.zeros(3, dtype=torch.bool),
        bound=torch.full((3,), 1e-7, dtype=torch.float64),
        unit=1.0,
        all_agree=False,
        evidence=None,
    )
    gradient = LayerGradient(torch.ones(3, 64), sent.diagonal().float() / 8, scale=1.0, steps=1)
    claims = vouch(candidates, gradient, Twice(sent), kappa=8.0)
    assert claims.claimed.tolist() == [vouched, vouched, True]
