"""The bootstrap against scipy, closed forms and a simulation with a known mean."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from seepage.log import bootstrap


def test_one_group_agrees_with_scipy() -> None:
    values = np.random.default_rng(0).exponential(size=30)
    ours = bootstrap([values], resamples=20_000, seed=1)
    theirs = stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(2)
    )
    # sd of an estimated 2.5 % quantile of a normal: sqrt(p (1 - p) / R) / phi(1.96) = 0.019 sd; five of both
    tolerance = 5 * 2**0.5 * 0.019 * theirs.standard_error
    assert ours.low == pytest.approx(theirs.confidence_interval.low, abs=tolerance)
    assert ours.high == pytest.approx(theirs.confidence_interval.high, abs=tolerance)
    assert ours.mean == pytest.approx(values.mean(), rel=1e-14)
    assert (ours.count, ours.groups) == (30, 1)


def half_width(groups: list[np.ndarray]) -> float:
    interval = bootstrap(groups, resamples=20_000)
    return (interval.high - interval.low) / 2


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_two_levels_have_the_variance_of_the_two_stage_bootstrap(spread) -> None:
    # n groups of m values: Var = (variance of the group means + mean of the within-variances / m) / n
    # (Davison and Hinkley 1997, Sec. 3.8), with plug-in variances.
    n, m = 8, 6
    values = np.random.default_rng(3).normal(size=(n, m))
    values -= values.mean(axis=1, keepdims=True)
    values += spread * np.linspace(-1, 1, n)[:, None]
    variance = (values.mean(axis=1).var() + values.var(axis=1).mean() / m) / n
    assert half_width(list(values)) == pytest.approx(1.96 * variance**0.5, rel=0.05)


def test_groups_that_differ_widen_the_interval() -> None:
    rng = np.random.default_rng(4)
    groups = [centre + 0.1 * rng.normal(size=20) for centre in (0.0, 1.0, 2.0, 3.0)]
    assert half_width(groups) > 3 * half_width([np.concatenate(groups)])


def coverage(make_groups, repetitions: int) -> float:
    rng = np.random.default_rng(5)
    inside = 0
    for i in range(repetitions):
        interval = bootstrap(make_groups(rng), resamples=500, seed=i)
        inside += interval.low <= 2.0 <= interval.high
    return inside / repetitions


def test_coverage_of_a_known_mean() -> None:
    # The sd of a coverage of 95 % estimated from 400 repetitions is 1.1 points.
    one = coverage(lambda rng: [rng.normal(2.0, 1.0, size=50)], 400)
    assert 0.91 < one < 0.98

    # Ten groups with effects of their own. Percentile intervals of ten draws are a little short (t against
    # normal quantiles: about 92 %), the second level makes up for some of it.
    def grouped(rng: np.random.Generator) -> list[np.ndarray]:
        return list(2.0 + rng.normal(size=(10, 1)) + rng.normal(size=(10, 5)))

    two = coverage(grouped, 400)
    assert 0.88 < two < 0.985
    pooled = coverage(lambda rng: [np.concatenate(grouped(rng))], 400)
    assert pooled < 0.8  # what ignoring the groups would claim


def test_unequal_groups_weigh_by_examples() -> None:
    interval = bootstrap([[0.0] * 9, [10.0], []])
    assert interval.mean == pytest.approx(1.0)
    assert (interval.count, interval.groups) == (10, 2)
    assert interval.low == 0.0
    assert interval.high == 10.0


def test_constants_seeds_and_no_value() -> None:
    constant = bootstrap([[0.25, 0.25], [0.25]])
    assert constant.low == constant.mean == constant.high == 0.25
    values = [[1.0, 2.0, 5.0], [0.0, 3.0]]
    assert bootstrap(values, seed=7) == bootstrap(values, seed=7)
    with pytest.raises(ValueError, match="at least one value"):
        bootstrap([[], []])


def test_a_score_that_could_not_be_computed_stays_visible() -> None:
    interval = bootstrap([[1.0, float("nan")]])
    assert np.isnan([interval.mean, interval.low, interval.high]).all()
