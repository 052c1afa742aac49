"""From epsilon to noise: what accountants say of the noise found is the epsilon asked for, and no more."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from seepage.core.types import LocalTraining
from seepage.defenses import DEFENSES, Deployment, epsilon, noise_multiplier
from seepage.defenses.calibration import settled_sigma
from seepage.defenses.entry import Schedule

needs_pld = pytest.mark.skipif(
    find_spec("dp_accounting") is None,
    reason="dp-accounting is not installed: pip install 'seepage[dp]'",
)


@pytest.mark.parametrize("steps", [1, 300])
@pytest.mark.parametrize("target", [0.1, 1.0, 3.0, 8.0, 50.0])
def test_without_sampling_the_closed_form_is_inverted(target, steps) -> None:
    sigma = noise_multiplier(epsilon=target, delta=1e-5, steps=steps)
    assert epsilon(sigma=sigma, delta=1e-5, steps=steps) == pytest.approx(target, rel=1e-6)
    assert epsilon(sigma=sigma, delta=1e-5, steps=steps) <= target


def test_an_epsilon_that_asks_for_no_noise_is_one_sentence() -> None:
    with pytest.raises(ValueError, match="asks for no noise"):
        noise_multiplier(epsilon=1e6, delta=1e-5)


@needs_pld
def test_with_sampling_the_accountant_stays_just_below() -> None:
    sigma = noise_multiplier(epsilon=3.0, delta=1e-5, steps=100, sampling_rate=0.04)
    assert 2.97 < epsilon(sigma=sigma, delta=1e-5, steps=100, sampling_rate=0.04) <= 3.0
    assert sigma < noise_multiplier(epsilon=3.0, delta=1e-5, steps=100)


def test_the_whole_deployment_is_counted() -> None:
    """Five uses of an example, in ten rounds of two turns; a client is in all ten."""
    schedule = Schedule(rounds=10, turns=2, delta=1e-6)
    example = settled_sigma("dp_sgd", 1.0, 2.0, schedule)
    client = settled_sigma("user_dp", 1.0, 2.0, schedule, client=True)
    assert example == noise_multiplier(epsilon=2.0, delta=1e-6, steps=5)
    assert client == noise_multiplier(epsilon=2.0, delta=1e-6, steps=10)
    epochs = settled_sigma("dp_sgd", 1.0, 2.0, schedule, uses=3)
    assert epsilon(sigma=epochs, delta=1e-6, steps=15) == pytest.approx(2.0, rel=1e-6)


@pytest.mark.parametrize("name", ["dp_sgd", "user_dp", "central_dp"])
def test_sigma_or_epsilon_and_not_both(name) -> None:
    around = Deployment(training=LocalTraining(), schedule=Schedule(rounds=3))
    with pytest.raises(ValueError, match="both sigma = 2 and epsilon = 3: give one"):
        DEFENSES[name].build(sigma=2.0, epsilon=3.0, deployment=around)
    for wrong in (0.0, -1.0, float("inf")):
        with pytest.raises(ValueError, match="epsilon must be positive and finite"):
            DEFENSES[name].build(epsilon=wrong, deployment=around)
