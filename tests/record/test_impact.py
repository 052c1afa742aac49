"""Who leaks: rank correlations against scipy, permutation p-values against known cases."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from seepage.record import AttackRef, Cell, Example, associations, by_class


def cell(seed: int, traits: list[float], scores: list[float], labels: list[int] | None = None) -> Cell:
    examples = tuple(
        Example(
            index=i,
            client=0,
            label=labels[i] if labels else 0,
            recovered=True,
            scores={"psnr": score, "exact": float(score >= 100)},
            traits={"loss": trait},
        )
        for i, (trait, score) in enumerate(zip(traits, scores, strict=True))
    )
    return Cell(attack=AttackRef(name="a"), seed=seed, status="done", examples=examples)


def test_one_batch_equals_spearman() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random(30), rng.random(30)
    (found,) = associations([cell(0, x.tolist(), y.tolist())], "psnr", higher_leaks=True)
    expected = spearmanr(x, y)
    assert found.correlation == pytest.approx(expected.statistic)
    assert found.p_value == pytest.approx(expected.pvalue, abs=0.05)
    (lower,) = associations([cell(0, x.tolist(), y.tolist())], "psnr", higher_leaks=False)
    assert lower.correlation == pytest.approx(-expected.statistic)


def test_a_difference_between_batches_is_no_association_within_them() -> None:
    """Batch 1 has larger losses and more leakage throughout, but within a batch there is no order."""
    rng = np.random.default_rng(1)
    one = cell(0, rng.random(40).tolist(), rng.random(40).tolist())
    two = cell(1, (10 + rng.random(40)).tolist(), (10 + rng.random(40)).tolist())
    (found,) = associations([one, two], "psnr", higher_leaks=True)
    assert abs(found.correlation) < 0.3 and found.p_value > 0.05
    assert (found.examples, found.batches) == (80, 2)


def test_a_perfect_order_is_as_sure_as_the_permutations_allow() -> None:
    (found,) = associations([cell(0, list(range(12)), list(range(12)))], "psnr", higher_leaks=True)
    assert found.correlation == pytest.approx(1.0)
    assert found.p_value == pytest.approx(1 / 2001)


def test_false_alarms_come_at_their_rate() -> None:
    rng = np.random.default_rng(2)
    alarms = 0
    for _ in range(200):
        batches = [cell(s, rng.random(8).tolist(), rng.random(8).tolist()) for s in range(2)]
        alarms += associations(batches, "psnr", higher_leaks=True)[0].p_value <= 0.05
    assert 2 <= alarms <= 22  # 10 expected; outside with probability below 1e-3


def test_batches_that_say_nothing_are_left_out() -> None:
    assert associations([cell(0, [1.0, 1.0, 1.0], [1.0, 2.0, 3.0])], "psnr", higher_leaks=True) == []
    assert associations([cell(0, [1.0, 2.0], [1.0, 2.0])], "psnr", higher_leaks=True) == []


def test_by_class() -> None:
    found = by_class([cell(0, [0, 0, 0], [100.0, 10.0, 20.0], [2, 0, 2])], "psnr")
    assert [(c.label, c.examples, c.exact, c.mean) for c in found] == [(0, 1, 0, 10.0), (2, 2, 1, 60.0)]
