"""Low-rank restoration against matrices whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from seepage.attacks.adaptive.low_rank import complete, filter_noise, truncate


def low_rank(rows: int = 120, columns: int = 90, rank: int = 3) -> Tensor:
    g = torch.Generator().manual_seed(0)
    left = torch.randn(rows, rank, generator=g, dtype=torch.float64)
    return left @ torch.rand(rank, columns, generator=g, dtype=torch.float64)


def test_truncation_is_the_singular_value_decomposition() -> None:
    matrix = low_rank() + 0.01 * torch.randn(120, 90, dtype=torch.float64)
    u, s, v = truncate(matrix, 3)
    expected = np.linalg.svd(matrix.numpy(), compute_uv=False)
    assert np.allclose(s.numpy(), expected[:3], rtol=1e-8)
    assert torch.allclose(u.T @ u, torch.eye(3, dtype=torch.float64), atol=1e-8)
    assert torch.allclose(matrix @ v, u * s, atol=1e-4)


def test_entries_that_were_not_sent_are_found_exactly() -> None:
    """90 x 120 numbers with 3 x 210 degrees of freedom: half of them are more than enough."""
    whole = low_rank()
    kept = torch.rand(whole.shape, generator=torch.Generator().manual_seed(1)) < 0.5
    found = complete(whole * kept, 3, lambda z: torch.where(kept, whole, z))
    assert (found - whole).abs().max() < 1e-3 * whole.abs().max()


@pytest.mark.parametrize("sigma", [0.01, 0.1, 1.0])
def test_noise_is_estimated_and_reduced_nearly_to_what_the_rank_allows(sigma: float) -> None:
    clean = low_rank(400, 300, 2)
    noisy = clean + sigma * torch.randn(400, 300, generator=torch.Generator().manual_seed(2)).double()
    found, estimate = filter_noise(noisy, 2)
    assert estimate == pytest.approx(sigma, rel=0.02)
    # r (N + m) of N m coordinates keep their noise
    expected = sigma * (2 * (400 + 300)) ** 0.5
    assert float((found - clean).norm()) < 1.2 * expected < 0.2 * float((noisy - clean).norm())


def test_noise_without_a_signal_leaves_nothing() -> None:
    found, _ = filter_noise(torch.randn(300, 200, generator=torch.Generator().manual_seed(3)), 2)
    assert float(found.norm()) == 0.0
