"""Epsilon against closed forms, numerical integration and another library's accountant."""

from __future__ import annotations

import math
import sys
from importlib.util import find_spec

import mpmath
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import norm

from seepage.core.errors import SpecError
from seepage.core.types import LocalTraining
from seepage.defenses import accounting, epsilon, uses_per_round
from seepage.protocol import local_batches

needs_pld = pytest.mark.skipif(
    find_spec("dp_accounting") is None,
    reason="dp-accounting is not installed: pip install 'seepage[dp]'",
)


def integrated_delta(eps: float, sigma: float) -> float:
    """max(N(1, s^2) - e^eps N(0, s^2), 0) integrated: the definition, with no closed form in it."""

    def excess(x: float) -> float:
        return max(norm.pdf(x, 1, sigma) - math.exp(eps) * norm.pdf(x, 0, sigma), 0.0)

    crossing = sigma**2 * eps + 0.5
    return float(quad(excess, crossing, crossing + 40 * sigma, limit=200)[0])


@pytest.mark.parametrize(
    ("sigma", "delta"), [(0.5, 1e-5), (1.0, 1e-5), (1.0, 1e-3), (3.0, 1e-6), (10.0, 1e-2)]
)
def test_closed_form_against_the_definition(sigma, delta) -> None:
    assert integrated_delta(epsilon(sigma=sigma, delta=delta), sigma) == pytest.approx(delta, rel=1e-5)


def precise_delta(eps: float, sigma: float, steps: int) -> mpmath.mpf:
    """Balle and Wang's Theorem 8 with 400 digits, which neither over- nor underflow."""
    with mpmath.workdps(400):
        single = mpmath.mpf(sigma) / mpmath.sqrt(steps)
        half, shift = 1 / (2 * single), eps * single
        return mpmath.ncdf(half - shift) - mpmath.exp(eps) * mpmath.ncdf(-half - shift)


@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
@pytest.mark.parametrize(("sigma", "steps"), [(0.02, 1), (0.1, 1), (0.5, 400), (1.0, 1), (5.0, 25), (2.0, 1)])
def test_the_closed_form_from_hardly_any_noise_to_much(sigma, steps, delta) -> None:
    """Epsilons from 0.01 to 1600. A relative error of 1e-9 in a delta is far below what anyone reports."""
    found = epsilon(sigma=sigma, delta=delta, steps=steps)
    assert precise_delta(found * (1 + 1e-9), sigma, steps) < delta
    assert precise_delta(found * (1 - 1e-9), sigma, steps) > delta


def test_the_analytic_mechanism_beats_the_classical_bound_and_never_goes_below_zero() -> None:
    # sigma = sqrt(2 ln(1.25 / delta)) / eps is sufficient for eps < 1 (Dwork & Roth 2014, Theorem 3.22)
    for eps in (0.1, 0.5, 0.9):
        classical = math.sqrt(2 * math.log(1.25 / 1e-5)) / eps
        assert 0.5 * eps < epsilon(sigma=classical, delta=1e-5) < eps
    assert epsilon(sigma=1e9, delta=1e-5) == 0.0


@needs_pld
@pytest.mark.parametrize(("sigma", "steps"), [(0.7, 1), (1.0, 1), (5.0, 1), (8.0, 100)])
def test_the_accountant_agrees_with_the_closed_form(sigma, steps) -> None:
    counted = accounting.pld_epsilon(sigma=sigma, delta=1e-5, steps=steps)
    exact = accounting.gaussian_epsilon(sigma=sigma, delta=1e-5, steps=steps)
    assert counted == pytest.approx(exact, rel=0.01)
    assert counted >= exact * (1 - 1e-6)  # an upper bound, as a central-limit approximation is not


@needs_pld
@pytest.mark.parametrize(("sigma", "rate"), [(0.8, 0.01), (1.0, 0.1), (2.0, 0.5)])
def test_one_sampled_step_against_the_mixture(sigma, rate) -> None:
    """P = (1-q) N(0, s^2) + q N(1, s^2) exceeds e^eps N(0, s^2) above one point t."""

    def delta(eps: float) -> float:
        t = sigma**2 * math.log((math.exp(eps) - 1 + rate) / rate) + 0.5
        mixed = (1 - rate) * norm.sf(t, 0, sigma) + rate * norm.sf(t, 1, sigma)
        return mixed - math.exp(eps) * norm.sf(t, 0, sigma)

    exact = brentq(lambda e: delta(e) - 1e-5, 1e-6, 50)
    assert epsilon(sigma=sigma, sampling_rate=rate) == pytest.approx(exact, rel=0.01)


# Opacus 1.6.0, PRVAccountant.get_epsilon(1e-5): an upper bound with eps_error = 0.01.
OPACUS_PRV = [
    (1.0, 0.1, 10, 2.8648),
    (2.0, 0.25, 40, 3.9645),
    (4.0, 0.5, 100, 5.8790),
]


@needs_pld
@pytest.mark.parametrize(("sigma", "rate", "steps", "other"), OPACUS_PRV)
def test_sampled_steps_against_opacus(sigma, rate, steps, other) -> None:
    assert epsilon(sigma=sigma, sampling_rate=rate, steps=steps) == pytest.approx(other, rel=0.01)


def test_without_noise_there_is_no_privacy_and_without_use_no_loss() -> None:
    assert epsilon(sigma=0.0) == math.inf
    assert epsilon(sigma=0.0, steps=0) == 0.0
    assert epsilon(sigma=0.0, sampling_rate=0.0) == 0.0


def test_more_steps_cost_more() -> None:
    values = [epsilon(sigma=2.0, steps=t) for t in (1, 4, 16)]
    assert values == sorted(values)
    assert epsilon(sigma=2.0, steps=4) == pytest.approx(epsilon(sigma=1.0), rel=1e-9)  # s / sqrt(T)


def test_a_missing_accountant_is_named_with_its_remedy(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting.pld.privacy_loss_distribution", None)
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(SpecError) as refused:
        epsilon(sigma=1.0, sampling_rate=0.5)
    assert str(refused.value) == (
        "epsilon at a sampling rate below 1 needs the accountant dp-accounting: pip install 'seepage[dp]', "
        "or use sampling_rate = 1, which is never too small."
    )
    assert epsilon(sigma=1.0) == pytest.approx(4.3772, abs=1e-4)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"sigma": -1.0}, "sigma must be zero or positive"),
        ({"sigma": 1.0, "delta": 0.0}, "delta must lie between 0 and 1"),
        ({"sigma": 1.0, "delta": 1.0}, "delta must lie between 0 and 1"),
        ({"sigma": 1.0, "delta": math.nan}, "delta must lie between 0 and 1"),
        ({"sigma": 1.0, "steps": -1}, "steps must be a whole number"),
        ({"sigma": 1.0, "steps": 1.5}, "steps must be a whole number"),
        ({"sigma": 1.0, "sampling_rate": 1.1}, "sampling_rate must lie between 0 and 1"),
    ],
)
def test_epsilon_refuses(settings, sentence) -> None:
    with pytest.raises(ValueError, match=sentence):
        epsilon(**settings)


@pytest.mark.parametrize(
    ("training", "examples"),
    [
        (LocalTraining(), 10),
        (LocalTraining(algorithm="fedavg"), 10),
        (LocalTraining(algorithm="fedavg", epochs=3), 7),
        (LocalTraining(algorithm="fedavg", batch_size=4, epochs=2, shuffle_seed=1), 10),
        (LocalTraining(algorithm="fedavg", batch_size=4, epochs=9, steps=4), 10),
        (LocalTraining(algorithm="fedavg", batch_size=4, epochs=9, steps=2), 10),
    ],
)
def test_uses_per_round_against_counting(training, examples) -> None:
    counts = np.zeros(examples, dtype=int)
    for index in local_batches(examples, training):
        counts[index.numpy()] += 1
    assert uses_per_round(training, examples) == counts.max()
