"""ROC curves against scikit-learn's, and the interval against its own promise."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import roc_auc_score, roc_curve

from seepage.core.errors import DataError
from seepage.metrics.membership import roc


@pytest.mark.parametrize("seed", range(5))
def test_the_curve_is_scikit_learns(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    members = (torch.randn(40, generator=generator) + 0.7).round(decimals=1)  # ties
    others = torch.randn(60, generator=generator).round(decimals=1)
    found = roc(members, others)
    truth = [1] * 40 + [0] * 60
    scores = torch.cat([members, others]).numpy()
    assert found.area == pytest.approx(roc_auc_score(truth, scores))
    theirs = roc_curve(truth, scores, drop_intermediate=False)
    assert torch.allclose(found.false_alarms, torch.from_numpy(theirs[0]))
    assert torch.allclose(found.found, torch.from_numpy(theirs[1]))
    assert found.found_at(1.0) == 1.0 and found.found_at(0.1) <= found.found_at(0.3)


def test_the_interval_covers_the_true_area() -> None:
    """Normal scores one deviation apart: the area is Phi(1 / sqrt 2)."""
    generator, held = torch.Generator().manual_seed(1), 0
    true = float(torch.special.ndtr(torch.tensor(0.5**0.5, dtype=torch.float64)))
    for _ in range(300):
        low, high = roc(
            torch.randn(30, generator=generator) + 1, torch.randn(30, generator=generator)
        ).interval
        held += low <= true <= high
    assert 0.92 <= held / 300 <= 0.985  # 95 % and three standard errors


def test_no_confusion_leaves_some_doubt_and_too_few_are_refused() -> None:
    perfect = roc(torch.ones(30), torch.zeros(30))
    assert perfect.area == 1.0 and perfect.interval == (0.9, 1.0) and perfect.found_at(0.0) == 1.0
    with pytest.raises(DataError, match="two members and two others"):
        roc(torch.ones(1), torch.zeros(5))
