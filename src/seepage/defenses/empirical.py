"""What a mechanism's releases show of its epsilon: canaries, all in one run (Andrew et al. 2023).

A canary is a contribution in a random direction. Whoever holds a release tests whether the canary is in it by
the cosine of the two. For a canary that is *not* in it, the direction is independent of the release, so the
cosine has a known distribution and the chance of a false alarm needs no sample at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy.stats import beta as beta_distribution
from torch import Tensor

from seepage.defenses.accounting import epsilon, gaussian_epsilon
from seepage.defenses.canaries import FEWEST, LONG, random_directions

_TWO_SIDED = 1.96
"""Derived: the 97.5 % quantile of the normal distribution."""
_THRESHOLDS = 64
"""Tried on one half of the canaries; the other half counts. Cost: only how tight the bound is depends on
them."""


@dataclass(frozen=True, kw_only=True)
class Empirical:
    """What canaries show of one mechanism."""

    estimate: float
    """Epsilon of a Gaussian mechanism, sampled as declared, that shows canaries so clearly: right where the
    mechanism is one."""
    low: float
    high: float
    """The ends of its 95 % interval."""
    at_least: float
    """With 95 % confidence epsilon is no smaller, whatever the mechanism is."""
    delta: float
    canaries: int

    def contradicts(self, claimed: float) -> bool:
        """The claim cannot hold.

        >>> found = Empirical(estimate=9.0, low=8.0, high=9.9, at_least=5.0, delta=1e-5, canaries=100)
        >>> found.contradicts(3.0)
        True
        """
        return self.at_least > claimed

    def words(self, claimed: float | None = None) -> str:
        """One sentence."""
        said = (
            f"{self.canaries} canaries: ε about {self.estimate:.3g} ({self.low:.3g} to {self.high:.3g}) if "
            f"the mechanism is Gaussian, and at least {self.at_least:.3g} in any case (95 %), at δ = "
            f"{self.delta:g}"
        )
        if claimed is None:
            return f"{said}."
        verdict = "which contradicts the claim of" if self.contradicts(claimed) else "the claim is"
        return f"{said}; {verdict} ε = {claimed:.3g}."


def empirical_epsilon(
    mechanism: Callable[[Tensor], Tensor],
    *,
    size: int,
    canaries: int = 1000,
    delta: float = 1e-5,
    seed: int = 0,
) -> Empirical:
    """Audit a mechanism that releases a noisy sum.

    mechanism: takes contributions (canaries, size) and returns one release (size,), up to a factor. They come
    with a norm of 1,000, far above any clipping bound, so that clipping is audited too.
    size: how many numbers a release has; canaries disturb each other by about canaries / size, so keep that
    small. The lower bound takes the canaries of one release as independent, which they are as size grows
    (Andrew et al. 2023, Theorem 3.2).

    >>> def gaussian(given):
    ...     clipped = given / given.norm(dim=1, keepdim=True).clamp(min=1.0)
    ...     noise = torch.randn(given.shape[1], generator=torch.Generator().manual_seed(1))
    ...     return clipped.sum(dim=0) + noise
    >>> found = empirical_epsilon(gaussian, size=20_000, canaries=400)
    >>> 3.5 < found.estimate < 5.3, found.contradicts(4.38)
    (True, False)
    """
    if canaries < FEWEST or size <= canaries:
        raise ValueError(
            f"{canaries} canaries in {size} numbers: give at least {FEWEST}, and fewer than numbers"
        )
    directions = random_directions(canaries, size, seed)
    release = mechanism(directions * LONG).to(directions)
    return from_cosines(directions @ release / release.norm(), size=size, delta=delta)


def from_cosines(cosines: Tensor, *, size: int, delta: float = 1e-5, releases: int = 1) -> Empirical:
    """From the cosines of canaries with the release; absent ones have mean 0, variance 1 / size.

    releases: such ones that the estimate is for; the bound stays that of the one that was seen.
    """
    # Of a Gaussian mechanism both spreads agree. A measured one would cost more: at delta = 1e-5 an error of
    # 3 % in it (400 canaries) is one of 20 % in epsilon.
    values = cosines.double()
    apart = float(values.mean()) * math.sqrt(size * releases)
    return _found(values, apart, size=size, delta=delta)


def from_parts(
    seen: Tensor, directions: Tensor, *, delta: float = 1e-5, steps: int = 1, sampling_rate: float = 1.0
) -> Empirical:
    """From parts (canaries, numbers) of releases or of their sum, each with one canary's direction in it.

    steps, sampling_rate: releases in the sum, and the chance of a canary to be in one. The sum of sampled
    releases tells less than the releases (at epsilon 3, a rate of .04 and 300 steps: 2.2). It does tell how
    large the noise is beside a canary, and that gives the estimate, by the accountant.

    The estimate takes the noise from all parts together, across the directions; the bound takes each part's
    cosine by itself, whose distribution without a canary is known.

    >>> from seepage.defenses.canaries import random_directions
    >>> directions = random_directions(2000, 20, 0)
    >>> noise = torch.randn(2000, 20, generator=torch.Generator().manual_seed(1))
    >>> found = from_parts(directions + noise, directions)  # sigma = 1, whose epsilon is 4.38
    >>> found.low < 4.38 < found.high, found.at_least < 4.38
    (True, True)
    """
    seen, directions = seen.double(), directions.double()
    along = (seen * directions).sum(dim=1)
    across = seen - along.unsqueeze(1) * directions
    count, width = seen.shape
    spread = float(across.square().sum()) ** 0.5 / math.sqrt(count * (width - 1))
    apart = float(along.mean()) / spread if spread > 0 else math.inf
    sampled = (steps, sampling_rate) if sampling_rate < 1 else None
    return _found(along / seen.norm(dim=1), apart, size=width, delta=delta, sampled=sampled)


def _found(
    cosines: Tensor, apart: float, *, size: int, delta: float, sampled: tuple[int, float] | None = None
) -> Empirical:
    """apart: of the two Gaussians, in standard deviations. sampled: steps and rate that they are a sum of."""
    off = _TWO_SIDED / math.sqrt(len(cosines))  # each canary's own noise; known to be 1
    if sampled is not None:  # and the number of steps that drew it
        steps, rate = sampled
        off *= math.sqrt(1 + min(apart, 1e6) ** 2 * (1 - rate) / (steps * rate))
    ends = [_epsilon_of(apart + shift, delta, sampled) for shift in (-off, 0.0, off)]
    return Empirical(
        estimate=ends[1],
        low=ends[0],
        high=ends[2],
        at_least=lower_bound(cosines, size=size, delta=delta),
        delta=delta,
        canaries=len(cosines),
    )


def _epsilon_of(apart: float, delta: float, sampled: tuple[int, float] | None = None) -> float:
    if apart <= 0:
        return 0.0
    if sampled is not None and apart < math.inf:
        steps, rate = sampled
        sigma = rate * math.sqrt(steps) / apart
        # Without noise worth the name the accountant's tables do not end.
        return epsilon(sigma=sigma, delta=delta, steps=steps, sampling_rate=rate) if sigma > 0.1 else math.inf
    return gaussian_epsilon(sigma=1 / apart, delta=delta, steps=1) if apart < math.inf else math.inf


def lower_bound(cosines: Tensor, *, size: int, delta: float, confidence: float = 0.95) -> float:
    """Epsilon is at least log((true alarms - delta) / false alarms), for the best of some thresholds.

    False alarms are exact: the cosine of a random direction in `size` dimensions is that of a Beta variable.
    True alarms are counted (Clopper and Pearson) on the half of the canaries that chose no threshold.
    """
    chosen, counted = cosines[::2], cosines[1::2]
    quantiles = torch.linspace(0.02, 0.98, _THRESHOLDS, dtype=chosen.dtype)
    thresholds = torch.quantile(chosen, quantiles)
    best = max(thresholds.tolist(), key=lambda t: _bound(chosen, t, size, delta, 0.5))
    return max(0.0, _bound(counted, best, size, delta, confidence))


def _bound(cosines: Tensor, threshold: float, size: int, delta: float, confidence: float) -> float:
    if threshold <= 0:
        return -math.inf
    hits, count = int((cosines > threshold).sum()), len(cosines)
    true = float(beta_distribution.ppf(1 - confidence, hits, count - hits + 1)) if hits else 0.0
    half = (size - 1) / 2
    # cos = 2 B - 1 with B ~ Beta(half, half)
    false = float(beta_distribution.logsf((1 + threshold) / 2, half, half)) if threshold < 1 else -math.inf
    if false == -math.inf:  # beyond what it computes: a cap has at most half of sin(angle)^(size - 1)
        false = half * math.log(max(1 - threshold**2, 1e-12)) - math.log(2)
    return -math.inf if true <= delta else math.log(true - delta) - false
