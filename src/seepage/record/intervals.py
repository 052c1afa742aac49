"""95 % intervals that hold for few batches: of a mean by Student's t over batches, of a share by its counts.

Examples of one batch share an update and a model, so they are alike. Batches (seeds) alone are independent,
and how alike their examples are must be learnt from them: three batches leave much room. The functions here
know numbers only; `Estimate` gives them names. benchmarks/interval_coverage.py measures how often they hold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
_TAILS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
SKEW_KEPT = 0.5
"""The part of the examples' skewness that the means of batches keep: none where the examples of a batch are
independent, all where they are equal; this is half way. Every part from .35 to 1 covers what it should in the
benchmark."""
CORRELATION_PRIOR = (1.0, 2.0)
"""Beta prior of the correlation within a batch: density 2 (1 - r), a third on average. It matters where the
counts say little, as where nothing leaked; (1, 1) and (1, 3) are compared in the benchmark."""
ENOUGH = 10
"""Chosen on beta-binomial batches of 100 and 500: coverage is .94 and more for 5, 10 and 20."""

Interval = tuple[float, float]
Floats = NDArray[np.float64]


def mean_interval(batches: Sequence[Floats]) -> Interval:
    """Of the mean over all values; each batch has at least one, and there are two values at least.

    The wider of two intervals on either side, the first of which needs two batches:
    - t over batches, with Bell and McCaffrey's (2002) variance and degrees of freedom for unequal sizes;
    - t over values within batches: the means of two or three batches may coincide by chance.

    Student's t misses the mean of skewed values, for the batches with the rare large values are missing. So
    the end on the side of the long tail is moved outwards by the first term of Hall's (1992) expansion,
    skewness (1 + 2 t^2) / (6 sqrt(batches)), but at most to the double of its distance; the other end stays.

    >>> mean_interval([np.array([1.0]), np.array([2.0]), np.array([3.0])])  # 2 -+ 4.303 / sqrt(3)
    (-0.484..., 4.484...)
    """
    from scipy.special import stdtrit  # late: opening a log need not wait for it

    sizes = np.array([len(b) for b in batches], dtype=float)
    values = np.concatenate(batches)
    count, centre = len(values), float(values.mean())
    skewness = _skewness(values)
    below = above = 0.0
    parts = []
    if len(batches) > 1:
        parts.append((*_between(batches, sizes, centre), SKEW_KEPT * skewness / math.sqrt(len(batches))))
    if count > len(batches):
        inside = sum(float(((b - b.mean()) ** 2).sum()) for b in batches) / (count - len(batches))
        parts.append((math.sqrt(inside / count), count - len(batches), skewness / math.sqrt(count)))
    for error, freedom, skew in parts:
        t = float(stdtrit(freedom, _TAILS[1]))
        moved = min(t, abs(skew) * (1 + 2 * t * t) / 6)
        below = max(below, error * (t + (moved if skew < 0 else 0.0)))
        above = max(above, error * (t + (moved if skew > 0 else 0.0)))
    return centre - below, centre + above


def _skewness(values: Floats) -> float:
    """Third standardised moment; 0 for equal values, up to rounding."""
    centred = values - values.mean()
    deviation = math.sqrt(float((centred**2).mean()))
    if deviation <= 1e-12 * float(np.abs(values).max()):
        return 0.0
    return float(((centred / deviation) ** 3).mean())


def _between(batches: Sequence[Floats], sizes: Floats, centre: float) -> tuple[float, float]:
    """Standard error of the mean from the batches' means, and its degrees of freedom.

    Bell and McCaffrey: the squares of the residuals are scaled so that they are right on average if the
    batch means have variances v, and get the degrees of freedom of a chi-square with the same variance. Here
    v is either the same for all (examples of a batch equal) or 1 / size (independent): the more careful of
    both is taken. Batches of one size need no choice: sd / sqrt(batches), batches - 1.
    """
    weights = sizes / sizes.sum()
    residuals = np.array([float(b.mean()) for b in batches]) - centre
    # weighted residuals are `projected @ means`
    projected = weights[:, None] * (np.eye(len(sizes)) - weights[None, :])
    scale, freedom = 0.0, math.inf
    for variances in (np.ones_like(sizes), 1 / sizes):
        spread = (projected * variances[None, :]) @ projected.T
        scale = max(scale, float((weights**2 * variances).sum() / np.trace(spread)))
        freedom = min(freedom, float(np.trace(spread) ** 2 / (spread**2).sum()))
    return math.sqrt(scale * float(((weights * residuals) ** 2).sum())), freedom


def share_interval(counts: Sequence[int], sizes: Sequence[int]) -> Interval:
    """Of a share, from how many of how many there were in each batch.

    Counts are beta-binomial: a batch has a share of its own around the common one. The posterior of the
    common share (Jeffreys' prior), averaged over the unknown correlation within a batch, gives the ends.
    Where all batches have `ENOUGH` of both kinds, their shares are known well, and t over batches needs no
    prior. Neither ends inside of Clopper and Pearson's interval, which holds if examples are independent. A
    single batch says nothing about the correlation: only that interval is left.

    >>> share_interval([0], [60])  # 1 - 0.025 ** (1 / 60)
    (0.0, 0.0596...)
    >>> share_interval([0, 0, 0], [20, 20, 20])
    (0.0, 0.24...)
    """
    low, high = clopper_pearson(sum(counts), sum(sizes))
    if len(sizes) > 1:
        pairs = list(zip(counts, sizes, strict=True))
        if all(ENOUGH <= k <= m - ENOUGH for k, m in pairs):
            careful = mean_interval([(np.arange(m) < k).astype(float) for k, m in pairs])
        else:
            careful = _beta_binomial(np.array(counts, float), np.array(sizes, float))
        low, high = max(0.0, min(low, careful[0])), min(1.0, max(high, careful[1]))
    return low, high


def clopper_pearson(count: int, of: int) -> Interval:
    """Clopper and Pearson's (1934) exact interval of a share of independent examples.

    >>> clopper_pearson(0, 300)
    (0.0, 0.0122...)
    """
    from scipy.special import betaincinv  # late: opening a log need not wait for it

    low = float(betaincinv(count, of - count + 1, _TAILS[0])) if count > 0 else 0.0
    high = float(betaincinv(count + 1, of - count, _TAILS[1])) if count < of else 1.0
    return low, high


_COARSE, _FINE, _CORRELATIONS = 60, 200, 30
_CORRELATION_ENDS = (1e-6, 0.999)
_NO_MASS = 1e-9


def _beta_binomial(counts: Floats, sizes: Floats) -> Interval:
    """Quantiles of the posterior on a grid: coarse over all shares first, then fine where the mass is.

    The grid is even in the angle asin(sqrt(share)), over which Jeffreys' prior is constant.
    """
    edges = np.linspace(0, math.pi / 2, _COARSE + 1)
    total = np.cumsum(_posterior(counts, sizes, edges))
    start, end = int(np.searchsorted(total, _NO_MASS)) - 1, int(np.searchsorted(total, 1 - _NO_MASS)) + 2
    edges = np.linspace(edges[max(0, start)], edges[min(_COARSE, end)], _FINE + 1)
    total = np.concatenate([[0.0], np.cumsum(_posterior(counts, sizes, edges))])
    low, high = np.sin(np.interp(_TAILS, total, edges)) ** 2
    return float(low), float(high)


def _posterior(counts: Floats, sizes: Floats, edges: Floats) -> Floats:
    """The mass between one angle and the next, averaged over the correlation."""
    from scipy.special import betainc, expit, gammaln, logit  # late: opening a log need not wait for it

    share = np.sin((edges[1:] + edges[:-1]) / 2)[:, None] ** 2  # (angles, 1)
    least, most = logit(_CORRELATION_ENDS)
    limits = np.linspace(float(least), float(most), _CORRELATIONS + 1)
    prior = np.diff(betainc(*CORRELATION_PRIOR, expit(limits)))
    # of the beta distribution of the batches' shares: 1 / correlation - 1
    strength = np.exp(-(limits[1:] + limits[:-1]) / 2)
    a, b = share * strength, (1 - share) * strength  # (angles, correlations)
    log = len(counts) * (gammaln(strength) - gammaln(a) - gammaln(b))
    for value, times in zip(*np.unique(counts, return_counts=True), strict=True):
        log += times * gammaln(value + a)
    for value, times in zip(*np.unique(sizes - counts, return_counts=True), strict=True):
        log += times * gammaln(value + b)
    for value, times in zip(*np.unique(sizes, return_counts=True), strict=True):
        log -= times * gammaln(value + strength)
    mass = np.asarray(np.exp(log - log.max()) @ prior, dtype=float)
    normalised: Floats = mass / mass.sum()
    return normalised
