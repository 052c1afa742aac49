"""Intervals against scipy's closed forms and against simulated batches with a known mean."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from seepage.metrics import METRICS
from seepage.record import RANGES, SHARE, Estimate
from seepage.record.intervals import clopper_pearson, mean_interval, share_interval


def test_batches_of_one_size_get_students_t_over_their_means() -> None:
    # the batches differ far more than their examples do, and nothing is skewed
    batches = [centre + np.array([-0.1, 0.1, -0.1, 0.1]) for centre in (1.0, 2.0, 3.0, 4.0)]
    means = [1.0, 2.0, 3.0, 4.0]
    expected = stats.t.interval(0.95, 3, loc=2.5, scale=stats.sem(means))
    assert mean_interval(batches) == pytest.approx(expected)


def test_batches_whose_means_coincide_get_the_interval_of_independent_values() -> None:
    values = np.array([-3.0, -1.0, 1.0, 3.0])
    found = Estimate.of([values, values, values])
    pooled = math.sqrt(20 / 3)  # of 12 values in 3 batches, 9 degrees of freedom
    assert found.high == pytest.approx(stats.t.ppf(0.975, 9) * pooled / math.sqrt(12))
    assert found.low == -found.high


def test_one_batch_gets_students_t_over_its_examples() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    found = Estimate.of([values], "error")
    expected = stats.t.interval(0.95, 4, loc=3.0, scale=stats.sem(values))
    assert (found.low, found.high) == pytest.approx(expected) and found.batches == 1


def test_two_unequal_batches_have_one_degree_of_freedom() -> None:
    # mean w y1 + (1 - w) y2; with equal variances v its own is (w^2 + (1 - w)^2) v, and v is (y1 - y2)^2 / 2
    # on average; with variances v / size it is less.
    found = mean_interval([np.zeros(30), np.full(10, 1.0)])
    error = math.sqrt((0.75**2 + 0.25**2) / 2)
    skewness = (1 - 2 * 0.25) / math.sqrt(0.25 * 0.75)
    t = stats.t.ppf(0.975, 1)
    moved = min(t, 0.5 * skewness * (1 + 2 * t * t) / (6 * math.sqrt(2)))
    assert found == pytest.approx((0.25 - t * error, 0.25 + (t + moved) * error))


def test_the_end_on_the_side_of_the_tail_is_moved_and_the_other_one_is_not() -> None:
    rng = np.random.default_rng(0)
    batches = [rng.exponential(size=20) for _ in range(5)]
    low, high = mean_interval(batches)
    mirrored = mean_interval([-b for b in batches])
    assert mirrored == pytest.approx((-high, -low))
    centre = float(np.mean(batches))
    assert high - centre > 1.1 * (centre - low)


@pytest.mark.parametrize(("count", "of"), [(0, 60), (60, 60), (3, 200), (1, 1), (0, 1), (7, 20)])
def test_one_batch_of_a_share_is_clopper_pearson(count: int, of: int) -> None:
    expected = stats.binomtest(count, of).proportion_ci(method="exact")
    for found in (clopper_pearson(count, of), share_interval([count], [of])):
        assert found == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_none_of_60_has_an_upper_end_and_all_of_60_a_lower_one() -> None:
    none = Estimate.of([[0.0] * 20] * 3, SHARE)
    every = Estimate.of([[1.0] * 20] * 3, SHARE)
    assert (none.value, none.low, every.value, every.high) == (0.0, 0.0, 1.0, 1.0)
    # wider than for 60 independent examples, narrower than for 3 in all
    assert clopper_pearson(0, 60)[1] < none.high < clopper_pearson(0, 3)[1]
    assert every.low == pytest.approx(1 - none.high)
    assert (none.n, none.batches, none.unit) == (60, 3, SHARE)


def test_the_share_of_a_few_batches_against_a_posterior_summed_by_hand() -> None:
    """The same model with scipy's beta-binomial distribution, on a plain grid."""
    counts, sizes = [1, 7, 0], [10, 20, 15]
    share = np.sin((np.arange(600) + 0.5) / 600 * math.pi / 2) ** 2
    correlation = (np.arange(300) + 0.5) / 300
    p, r = np.meshgrid(share, correlation, indexing="ij")
    density = 2 * (1 - r)
    for k, m in zip(counts, sizes, strict=True):
        density = density * stats.betabinom.pmf(k, m, p * (1 / r - 1), (1 - p) * (1 / r - 1))
    total = np.cumsum(density.sum(axis=1)) / density.sum()
    expected = share[np.searchsorted(total, 0.025)], share[np.searchsorted(total, 0.975)]
    low, high = share_interval(counts, sizes)
    assert low == pytest.approx(min(expected[0], clopper_pearson(8, 45)[0]), abs=0.005)
    assert high == pytest.approx(expected[1], abs=0.01)


def test_shares_that_every_batch_measures_well_are_compared_by_t() -> None:
    low, high = share_interval([440, 450, 460], [500] * 3)
    expected = stats.t.interval(0.95, 2, loc=0.9, scale=stats.sem([0.88, 0.9, 0.92]))
    # the lower end is moved a little, for shares near 1 are skewed
    assert high == pytest.approx(expected[1]) and expected[0] - 0.06 < low < expected[0]
    assert share_interval([480, 490, 450], [500] * 3)[1] == 1.0  # no end beyond all


def coverage(draw, mean: float, unit: str, audits: int = 300) -> float:
    rng = np.random.default_rng(5)
    found = [Estimate.of(draw(rng), unit) for _ in range(audits)]
    return float(np.mean([one.low <= mean <= one.high for one in found]))


@pytest.mark.parametrize("batches", [3, 10])
@pytest.mark.parametrize("correlation", [0.0, 0.3])
def test_coverage_of_a_known_mean(batches: int, correlation: float) -> None:
    """A small edition of benchmarks/interval_coverage.py; 300 audits: the sd of .95 is .013."""

    def normal(rng: np.random.Generator) -> list[np.ndarray]:
        shared, own = rng.standard_normal((batches, 1)), rng.standard_normal((batches, 20))
        return list(correlation**0.5 * shared + (1 - correlation) ** 0.5 * own)

    def skewed(rng: np.random.Generator) -> list[np.ndarray]:
        return [np.exp(values) for values in normal(rng)]

    def rare(rng: np.random.Generator) -> list[np.ndarray]:
        strength = 1 / max(correlation, 1e-6) - 1
        shares = rng.beta(0.02 * strength, 0.98 * strength, (batches, 1))
        return list((rng.random((batches, 20)) < shares).astype(float))

    for draw, mean, unit in ((normal, 0.0, ""), (skewed, math.exp(0.5), ""), (rare, 0.02, SHARE)):
        found = coverage(draw, mean, unit)
        assert found >= 0.92, (draw.__name__, found)
        assert draw is not normal or batches < 10 or found <= 0.99


@pytest.mark.parametrize(
    ("unit", "batches"),
    [
        (SHARE, [[0.02, 0.9], [0.1, 0.0], [0.95, 0.9]]),
        ("similarity", [[0.99, -0.9], [0.98, -0.99], [0.97, 0.99]]),
        ("error", [[0.0, 0.1], [9.0, 0.2], [0.1, 0.3]]),
        ("dB", [[99.0, 8.0], [100.0, 100.0], [100.0, 100.0]]),
    ],
)
def test_no_end_leaves_the_range_of_the_unit(unit: str, batches: list[list[float]]) -> None:
    low, high = mean_interval([np.array(b) for b in batches])
    least, most = RANGES[unit]
    assert low < least or high > most  # otherwise this would test nothing
    found = Estimate.of(batches, unit)
    assert found.low == max(low, least) and found.high == min(high, most)


def test_every_metric_has_a_unit_with_a_range() -> None:
    assert {"exact", "psnr", "lpips", "label_accuracy"} < set(METRICS)
    for name, metric in METRICS.items():
        low, high = RANGES[metric.unit]
        assert low <= metric.reach[0] and metric.reach[1] == high, name


def test_equal_values_unequal_batches_and_a_single_value() -> None:
    constant = Estimate.of([[0.25, 0.25], [0.25]], "error")
    assert constant.low == constant.value == constant.high == 0.25
    weighed = Estimate.of([[0.0] * 9, [10.0], []])
    assert (weighed.value, weighed.n, weighed.batches) == (1.0, 10, 2)
    one = Estimate.of([[0.3]], "similarity")
    assert (one.value, one.low, one.high, one.n) == (0.3, -1.0, 1.0, 1)
    for nothing in ([], [[], []]):
        with pytest.raises(ValueError, match="at least one value"):
            Estimate.of(nothing)
    with pytest.raises(ValueError, match="at least one value"):
        Estimate.of_counts([(0, 0)])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_score_that_could_not_be_computed_stays_visible(bad: float) -> None:
    for unit in ("", SHARE, "dB"):
        found = Estimate.of([[1.0, bad], [0.5]], unit)
        assert not math.isfinite(found.value) and math.isnan(found.low) and math.isnan(found.high)
        again = Estimate.model_validate_json(found.model_dump_json())
        assert math.isnan(again.low) and not math.isfinite(again.value)
    assert math.isnan(Estimate.of([[math.inf], [-math.inf]]).value)
