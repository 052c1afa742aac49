"""From the epsilon that somebody wants to the noise that gives it."""

from __future__ import annotations

import math
from functools import lru_cache

from scipy.optimize import brentq

from seepage.core.errors import SpecError
from seepage.defenses.accounting import gaussian_delta, pld_epsilon
from seepage.defenses.entry import Schedule

_FINE = 1e-3
"""Relative width to which a noise multiplier is searched. Cost: one more step of a bisection halves it; the
end with the smaller epsilon is taken, so that the promise holds for any."""
_ROUGH, _EXACT = 1e-3, 1e-4
"""To which an accountant rounds losses while sigma is searched, and for the last word. Cost: time and memory;
both round up, so that the promise holds for any."""
_LEAST, _MOST = 1e-3, 1e6
"""Noise multipliers that are searched. Derived: below, an update shows three digits of an example that
reaches the clip; beyond, a million examples leave less than their noise."""


@lru_cache(maxsize=256)
def noise_multiplier(
    *, epsilon: float, delta: float = 1e-5, steps: int = 1, sampling_rate: float = 1.0
) -> float:
    """The smallest sigma (to a thousandth) whose `accounting.epsilon` is at most `epsilon`.

    >>> round(noise_multiplier(epsilon=3.0), 3), round(noise_multiplier(epsilon=3.0, steps=4), 3)
    (1.391, 2.781)
    """
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be positive and finite, not {epsilon}")
    if steps == 0 or sampling_rate == 0:
        return 0.0
    if sampling_rate == 1:
        return math.sqrt(steps) * _one_release(epsilon, delta)

    def excess(sigma: float, interval: float = _ROUGH) -> float:
        found = pld_epsilon(
            sigma=sigma, delta=delta, steps=steps, sampling_rate=sampling_rate, interval=interval
        )
        return math.log(max(found, 1e-12) / epsilon)

    # Sampling only ever helps: without it the closed form is enough. Below a tenth an accountant has little
    # to say, and nobody would call it noise.
    high = math.sqrt(steps) * _one_release(epsilon, delta)
    low = min(0.1, high / 2)
    # T samples at rate q have about sigma = q sqrt(T) times that of one release: where the search begins.
    guess = min(high, max(2 * low, sampling_rate * high))
    while guess < high and excess(guess) > 0:
        low, guess = guess, min(high, 1.5 * guess)
    high = guess
    while low < high / 1.5 and excess(high / 1.5) <= 0:
        high /= 1.5
    low = max(low, high / 1.5)
    if excess(low) <= 0:
        return low
    found = float(brentq(excess, low, high, xtol=_FINE / 4 * low)) if excess(high) < 0 else high
    while excess(found, _EXACT) > 0 and found < high:  # the last word is the finer accountant's
        found *= 1 + _FINE / 4
    return found


def _one_release(epsilon: float, delta: float) -> float:
    """Balle and Wang's Theorem 8, solved for sigma."""
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie between 0 and 1 (1e-5 is common), not {delta}")
    # The classical bound lies above for epsilon up to 1; beyond it a wider one is cheap.
    above = 2 * math.sqrt(2 * math.log(1.25 / delta)) * max(1.0, 1 / epsilon)
    if above > _MOST:
        raise ValueError(f"epsilon = {epsilon:g} at delta = {delta:g} needs noise that leaves nothing")
    if gaussian_delta(sigma=_LEAST, epsilon=epsilon) < delta:
        raise ValueError(f"epsilon = {epsilon:g} at delta = {delta:g} asks for no noise to speak of")
    root = brentq(lambda s: gaussian_delta(sigma=s, epsilon=epsilon) - delta, _LEAST, above, rtol=1e-12)
    return float(root) * (1 + 1e-9)  # on the safe side of the root


def settled_sigma(
    what: str, sigma: float, epsilon: float | None, schedule: Schedule, *, uses: int = 1, client: bool = False
) -> float:
    """The noise multiplier that a mechanism runs with: `sigma`, or the one that `epsilon` asks for.

    uses: local steps of one round that use the same example. client: the promise is about a whole client,
    who is in every round.
    """
    if epsilon is None:
        return sigma
    if sigma != 1.0:
        raise ValueError(f"{what} has both sigma = {sigma:g} and epsilon = {epsilon:g}: give one of them")
    steps = schedule.rounds if client else schedule.releases
    rate = 1.0 if client else schedule.sampling_rate
    # Several uses of one sample are one Gaussian mechanism with sigma / sqrt(uses), drawn at this rate.
    try:
        found = noise_multiplier(
            epsilon=float(epsilon), delta=schedule.delta, steps=steps, sampling_rate=rate
        )
    except SpecError as error:
        raise ValueError(str(error).rstrip(".")) from None
    return math.sqrt(uses) * found
