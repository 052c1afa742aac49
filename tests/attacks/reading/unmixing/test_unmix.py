"""Unmixing on small layers whose examples, patterns and backward signals are known."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from tests.attacks.reading.peeling.builders import errors, sent
from torch import Tensor, nn

from seepage.attacks import ATTACKS
from seepage.attacks.reading.peeling.residual import Found, Residual
from seepage.attacks.reading.unmixing import polish
from seepage.attacks.reading.unmixing.assemble import assemble
from seepage.attacks.reading.unmixing.ledger import Ledger
from seepage.attacks.reading.unmixing.mixture import Mixture, mixture_of
from seepage.attacks.reading.unmixing.pattern import GENUINE, fit
from seepage.attacks.reading.unmixing.search import Search
from seepage.attacks.reading.unmixing.unmix import Unmixer
from seepage.core.progress import Clock
from seepage.core.types import Batch, InputSpec, Modality
from seepage.models.gradients import LayerGradient
from seepage.models.precision import EXACT

ROWS, COLUMNS, EXAMPLES = 64, 30, 8


@dataclass(frozen=True)
class Known:
    """A layer, its examples, and what each has in the mixture's coordinates."""

    mixture: Mixture
    x: Tensor
    signals: Tensor
    weight: Tensor
    bias: Tensor

    @property
    def on(self) -> Tensor:
        return self.x @ self.weight.T + self.bias > 0

    @property
    def a(self) -> Tensor:
        """[x, 1] = V a by least squares, from V = G^T U S^-1."""
        gradient = torch.cat([self.signals.T @ self.x, self.signals.sum(0).unsqueeze(1)], dim=1).double()
        v = gradient.T @ self.mixture.directions / self.mixture.sizes
        whole = torch.cat([self.x, torch.ones(len(self.x), 1)], dim=1).double()
        return torch.linalg.lstsq(v, whole.T).solution.T

    @property
    def q(self) -> Tensor:
        q = torch.linalg.inv(self.a).T * self.mixture.sizes
        return q / q.norm(dim=1, keepdim=True)


def known(seed: int = 0, examples: int = EXAMPLES, *, faint: int = 0, biases: float = 1.0) -> Known:
    """faint: so many examples with a thousandth of the others' signals, as a trained network has them.

    biases: their size; if large, many neurons are on for nearly all examples or for hardly any.
    """
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(ROWS, COLUMNS, generator=generator)
    bias = biases * torch.randn(ROWS, generator=generator)
    x = torch.randn(examples, COLUMNS, generator=generator)
    signals = torch.randn(examples, ROWS, generator=generator) * (x @ weight.T + bias > 0)
    signals[:faint] *= 1e-3
    rows = signals.T @ x
    mixture = mixture_of(
        lambda: rows.split(7, dim=1),
        signals.sum(0),
        noise=rows.norm(dim=1) * 1e-7,
        layer=(weight, bias),
        made_up=lambda unknown: torch.randn(4 * unknown, COLUMNS, generator=generator),
    )
    assert mixture is not None and mixture.unknown == examples
    return Known(mixture, x, signals, weight, bias)


def test_the_network_accepts_patterns_of_examples_and_rejects_others() -> None:
    for seed in range(3):
        layer = known(seed)
        genuine = layer.mixture.agreement(layer.on, fit(layer.mixture.gates, layer.on))
        assert float(genuine.min()) == 1.0  # there is an input with this pattern: the example
        generator = torch.Generator().manual_seed(seed)
        spurious = torch.rand(20, ROWS, generator=generator) < 0.5
        reached = layer.mixture.agreement(spurious, fit(layer.mixture.gates, spurious))
        assert float(reached.max()) < GENUINE


def test_found_examples_leave_exactly_the_span_of_the_others() -> None:
    layer = known()
    ledger = Ledger(layer.mixture)
    ledger.add(layer.q[:5], layer.on[:5])
    others = layer.a[5:]
    span = ledger.span()
    assert span.shape == (EXAMPLES, 3)
    assert float((others - others @ span @ span.T).norm() / others.norm()) < 1e-5
    reduced = ledger.reduced()
    outside = layer.q[5:] - layer.q[5:] @ reduced @ reduced.T
    assert float(outside.norm(dim=1).max()) < 0.7  # nearly: the pictures of those found are rough
    ledger.add(layer.q[4:5], layer.on[4:5])
    assert len(ledger) == 5  # the same one again is none


@pytest.mark.parametrize("left", [1, 2])
def test_the_last_ones_follow_without_a_draw(left: int) -> None:
    for seed in range(4):
        layer = known(seed)
        search = Search(layer.mixture, Clock(seconds=None))
        search.ledger.add(layer.q[left:], layer.on[left:])
        drawn = search._generator.get_state()
        assert search.run() and search.followed == left
        assert torch.equal(search._generator.get_state(), drawn)
        assert float((search.ledger.q @ layer.q.T).abs().amax(0).min()) > 0.9999


def trained(seed: int, *, rate: float, examples: int) -> Known:
    """The change of a layer over five steps on all examples, taken for one of the layer halfway."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(examples, COLUMNS, generator=generator).double()
    labels = torch.randint(5, (examples,), generator=generator)
    torch.manual_seed(seed)
    first = nn.Linear(COLUMNS, ROWS)
    model = nn.Sequential(first, nn.ReLU(), nn.Linear(ROWS, 5)).double()
    before = [parameter.detach().clone() for parameter in first.parameters()]
    for _ in range(5):
        gradients = torch.autograd.grad(
            nn.functional.cross_entropy(model(x), labels), list(model.parameters())
        )
        with torch.no_grad():
            for weights, gradient in zip(model.parameters(), gradients, strict=True):
                weights.sub_(gradient, alpha=rate)
    weight, bias = (p.detach() - start for p, start in zip(first.parameters(), before, strict=True))
    halfway = (before[0] + weight / 2, before[1] + bias / 2)
    mixture = mixture_of(
        lambda: weight.split(7, dim=1),
        bias,
        noise=torch.full((ROWS,), 1e-12),
        layer=halfway,
        made_up=lambda unknown: torch.randn(4 * unknown, COLUMNS, generator=generator),
        moved=1.0,
    )
    assert mixture is not None and mixture.unknown == examples
    whole = torch.cat([x, torch.ones_like(x[:, :1])], dim=1)
    signals = torch.cat([weight, bias.unsqueeze(1)], dim=1) @ torch.linalg.pinv(whole)
    return Known(mixture, x, signals.T, *halfway)


@pytest.mark.parametrize(
    ("left", "examples", "rate", "seeds"), [(1, 12, 0.2, (2, 3, 28)), (2, 8, 0.3, (11,))]
)
def test_the_last_ones_follow_where_neurons_crossed_0_between_local_steps(
    left: int, examples: int, rate: float, seeds: tuple[int, ...]
) -> None:
    """What is off halfway may have sent something before: only what never came near 0 is a zero."""
    for seed in seeds:
        layer = trained(seed, rate=rate, examples=examples)
        fired = layer.signals.abs() > 1e-9
        assert bool((fired & ~layer.on)[:left].any())
        search = Search(layer.mixture, Clock(seconds=None))
        search.ledger.add(layer.q[left:], fired[left:])
        assert search.run() and search.followed == left
        assert float((search.ledger.q @ layer.q.T).abs().amax(0).min()) > 0.9999


def test_a_wrong_find_is_taken_back_once_all_seem_to_be_found() -> None:
    layer = known(1)
    search = Search(layer.mixture, Clock(seconds=None))
    generator = torch.Generator().manual_seed(0)
    near = layer.q[0] + 0.5 * torch.randn(EXAMPLES, generator=generator, dtype=torch.float64)
    search.ledger.add(layer.q[1:], layer.on[1:])
    search.ledger.add(
        (near / near.norm()).unsqueeze(0), layer.on[:1] ^ (torch.rand(ROWS, generator=generator) < 0.1)
    )
    assert search.ledger.left == 0
    assert search.run() and search.weeded == 1
    assert float((search.ledger.q @ layer.q.T).abs().amax(0).min()) > 0.9999


def test_all_are_found_and_assembled_with_an_honest_error() -> None:
    for seed in range(3):
        layer = known(seed)
        search = Search(layer.mixture, Clock(seconds=None), seed=seed)
        assert search.run() and search.rounds > 0
        found = assemble(layer.mixture, search.ledger.q, torch.float64)
        assert found is not None
        distance = torch.cdist(found.features, layer.x.double())
        relative = distance.amin(1) / layer.x.norm(dim=1)[distance.argmin(1)]
        assert sorted(distance.argmin(1).tolist()) == list(range(EXAMPLES))
        assert bool((relative <= found.error).all()) and float(relative.max()) < 1e-5
        signals = layer.signals.double()[distance.argmin(1)]
        assert float((found.signals - signals).abs().max()) < 1e-4


def test_faint_examples_are_found_beside_a_thousand_times_stronger_ones() -> None:
    """Pictures of the strong ones are rough and hide the faint ones: the whole space is searched."""
    for seed in (2, 3):
        layer = known(seed, faint=4)
        search = Search(layer.mixture, Clock(seconds=None), seed=seed)
        assert search.run()
        assert float((search.ledger.q @ layer.q.T).abs().amax(0).min()) > 0.9999


def test_neurons_that_are_on_for_nearly_all_do_not_lead_away() -> None:
    """A count of zeros that weighs every row alike ends elsewhere (these seeds of the first ten)."""
    for seed in (4, 5, 6):
        layer = known(seed, biases=8.0)
        search = Search(layer.mixture, Clock(seconds=None), seed=seed)
        assert search.run()
        assert float((search.ledger.q @ layer.q.T).abs().amax(0).min()) > 0.9999


def test_a_full_ledger_takes_no_more() -> None:
    layer = known()
    ledger = Ledger(layer.mixture)
    ledger.add(layer.q, layer.on)
    ledger.add((layer.q[:1] + layer.q[1:2]) / 2, layer.on[:1])
    assert ledger.left == 0


def test_two_with_the_same_pattern_have_no_error_to_vouch_for() -> None:
    """Their backward signals are zero in the same rows: any combination of the two is as sparse."""
    generator = torch.Generator().manual_seed(5)
    weight, bias = torch.randn(ROWS, COLUMNS, generator=generator), torch.randn(ROWS, generator=generator)
    x = torch.randn(3, COLUMNS, generator=generator)
    x[2] = x[1] + 1e-4 * torch.randn(COLUMNS, generator=generator)
    on = x @ weight.T + bias > 0
    assert torch.equal(on[1], on[2])
    rows = (signals := torch.randn(3, ROWS, generator=generator) * on).T @ x
    unmixer = Unmixer((weight, bias), lambda u: torch.randn(4 * u, COLUMNS, generator=generator))
    residual = Residual(LayerGradient(rows, signals.sum(0), scale=1.0, steps=1))
    found = unmixer.unmix(residual, torch.arange(ROWS), Found.none(rows), Clock(seconds=None))
    if found is not None:
        wrong = torch.cdist(found.features, x).amin(1) / x.norm(dim=1).mean() > EXACT
        assert bool((found.error[wrong] > EXACT).all())


def test_noise_is_not_taken_apart() -> None:
    generator = torch.Generator().manual_seed(0)
    rows, bias = torch.randn(100, 50, generator=generator), torch.randn(100, generator=generator)
    unmixer = Unmixer((rows, bias), lambda u: torch.randn(4 * u, 50, generator=generator))
    residual = Residual(LayerGradient(rows, bias, scale=1.0, steps=1))
    assert unmixer.unmix(residual, torch.arange(100), Found.none(rows), Clock(seconds=None)) is None
    assert unmixer.search is None and unmixer.pictures() is None


def normalised(seed: int, examples: int, width: int) -> tuple[nn.Sequential, Batch, InputSpec]:
    """Pictures of 8 bits, normalised so that about half of all neurons fire for each."""
    torch.manual_seed(seed)
    raw = (torch.rand(examples, 1, 6, 6) * 255).round() / 255
    spec = InputSpec(modality=Modality.IMAGE, shape=(1, 6, 6), num_classes=5, mean=(0.5,), std=(0.29,))
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, width), nn.ReLU(), nn.Linear(width, 20), nn.ReLU())
    inputs = spec.to_model(raw)
    with torch.no_grad():  # no neuron is alone: each fires for half of the batch
        model[1].bias.copy_(-(inputs.flatten(1) @ model[1].weight.T).median(0).values - 1e-3)
    return model.append(nn.Linear(20, 5)), Batch(inputs, torch.randint(5, (examples,))), spec


def test_a_whole_normalised_batch_is_claimed_and_notes_say_where_it_came_from() -> None:
    for seed in (11, 12):
        model, batch, spec = normalised(seed, 10, 60)
        seen, told = sent(model, batch, spec)
        result = ATTACKS["exact_extraction"]().run([seen], told)
        truth = spec.to_raw(batch.inputs)
        assert result.claimed is not None and int(result.claimed.sum()) == 10
        assert float(errors(result.values[result.claimed], truth).amin(1).max()) < EXACT
        assert result.complete
        assert any("had no neuron of their own" in note for note in result.notes)


def test_a_budget_that_is_up_ends_the_search_and_is_said() -> None:
    model, batch, spec = normalised(11, 10, 60)
    seen, told = sent(model, batch, spec)
    result = ATTACKS["exact_extraction"](budget=1e-6).run([seen], told)
    assert result.claimed is None or int(result.claimed.sum()) < 10
    assert any("the time was up" in note for note in result.notes)
    with pytest.raises(ValueError, match="budget must be a positive number"):
        ATTACKS["exact_extraction"](budget=0.0)


def test_moments_that_are_singular_but_for_rounding_have_a_smallest_vector() -> None:
    """They have a Cholesky factor, and the inverse iteration overflows: so it was under a saturated loss."""
    basis = torch.eye(20)[:, :14] * 1e-20
    basis[0, 0] = 1.0
    weight = torch.full((2, 20), 1e-2)
    found = polish.smallest(basis, weight, torch.ones(2, 14) / 14**0.5)
    assert bool(found.isfinite().all())
    assert torch.allclose(found.norm(dim=1), torch.ones(2)) and float(found[:, 0].abs().max()) < 1e-3
