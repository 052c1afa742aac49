"""Epsilon of the Gaussian mechanism: in closed form, and by an accountant where batches are sampled.

Never a central-limit approximation: those lie below the true value. Neighbours are data sets of which one has
one record more (its gradient is zero in the other); all numbers are for a sensitivity of one clipping norm.
"""

from __future__ import annotations

import math
from functools import lru_cache
from importlib import import_module

from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from seepage.core.errors import SpecError
from seepage.core.types import LocalTraining
from seepage.defenses.gaussian_noise import check_sigma


def epsilon(*, sigma: float, delta: float = 1e-5, steps: int = 1, sampling_rate: float = 1.0) -> float:
    """The epsilon of `steps` noisy sums, each over a Poisson sample of the records.

    sigma: noise multiplier (the noise's standard deviation over the clipping norm).
    sampling_rate: the chance of each record to be in a step. 1: every step uses every record, which has a
    closed form. Below 1: dp-accounting's privacy loss distributions (`pip install 'seepage[dp]'`); only true
    if each step draws its records independently, which a pass over shuffled mini-batches does not.

    >>> round(epsilon(sigma=1.0, delta=1e-5), 2)
    4.38
    """
    check_sigma(sigma)
    _check(delta, steps, sampling_rate)
    if sampling_rate == 0 or steps == 0:
        return 0.0
    if sigma == 0:
        return math.inf
    if sampling_rate == 1:
        return gaussian_epsilon(sigma=sigma, delta=delta, steps=steps)
    return pld_epsilon(sigma=sigma, delta=delta, steps=steps, sampling_rate=sampling_rate)


def gaussian_delta(*, sigma: float, epsilon: float) -> float:
    """The smallest delta of one Gaussian mechanism (Balle & Wang 2018, Theorem 8), sensitivity 1.

    >>> round(gaussian_delta(sigma=1.0, epsilon=0.0), 4)  # the total variation distance, 2 Phi(1/2) - 1
    0.3829
    """
    half = 1 / (2 * sigma)
    # e^eps times a tiny tail: multiplied in the logarithm, where neither over- nor underflows
    tail = math.exp(epsilon + float(log_ndtr(-half - epsilon * sigma)))
    return float(ndtr(half - epsilon * sigma)) - tail


def gaussian_epsilon(*, sigma: float, delta: float, steps: int) -> float:
    """Exact: `steps` Gaussian mechanisms compose to a single one with sigma / sqrt(steps)."""
    single = sigma / math.sqrt(steps)
    if gaussian_delta(sigma=single, epsilon=0.0) <= delta:
        return 0.0
    # RDP's bound is always above the true value: 1/(2 s^2) + sqrt(2 log(1/delta)) / s
    above = 1 / (2 * single**2) + math.sqrt(2 * math.log(1 / delta)) / single
    root = brentq(lambda e: gaussian_delta(sigma=single, epsilon=e) - delta, 0.0, above, xtol=1e-12)
    return float(root)


@lru_cache(maxsize=256)
def pld_epsilon(
    *, sigma: float, delta: float, steps: int, sampling_rate: float = 1.0, interval: float = 1e-4
) -> float:
    """By privacy loss distributions, rounded so that the result is an upper bound.

    interval: to which losses are rounded up; a larger one is faster and lies further above.
    """
    try:
        pld = import_module("dp_accounting.pld.privacy_loss_distribution")
    except ModuleNotFoundError:
        raise SpecError(
            "epsilon at a sampling rate below 1 needs the accountant dp-accounting: "
            "pip install 'seepage[dp]', or use sampling_rate = 1, which is never too small."
        ) from None
    one = pld.from_gaussian_mechanism(
        standard_deviation=sigma, sampling_prob=sampling_rate, value_discretization_interval=interval
    )
    return float(one.self_compose(steps).get_epsilon_for_delta(delta))


def uses_per_round(training: LocalTraining, num_examples: int) -> int:
    """How many of a client's local steps in one round use the same example.

    Mini-batches of one epoch share no example, so a step that does not hold it only processes what is already
    private: the example pays once an epoch. FedSGD: once.

    >>> uses_per_round(LocalTraining(algorithm="fedavg", batch_size=8, epochs=3), 20)
    3
    """
    per_epoch = -(-num_examples // (training.batch_size or num_examples))
    return -(-training.num_steps(num_examples) // per_epoch)


def _check(delta: float, steps: int, sampling_rate: float) -> None:
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie between 0 and 1 (1e-5 is common), not {delta}")
    if steps < 0 or steps != int(steps):
        raise ValueError(f"steps must be a whole number, zero or more, not {steps}")
    if not 0 <= sampling_rate <= 1:
        raise ValueError(f"sampling_rate must lie between 0 and 1, not {sampling_rate}")
