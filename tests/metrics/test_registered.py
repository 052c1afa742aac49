"""Registered PSNR on shifted copies, whose right motion is known."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from seepage.core.errors import DataError, NotApplicable
from seepage.metrics import (
    METRICS,
    PSNR_CAP,
    psnr,
    registered_psnr,
    registered_psnr_available,
)


def shifted(size: int, right: int, *, n: int = 1, channels: int = 1) -> tuple[Tensor, Tensor]:
    """Two windows of one smooth picture, `right` pixels apart, and so without made-up borders."""
    generator = torch.Generator().manual_seed(3)
    coarse = torch.rand(n, channels, size // 4 + 2, size // 4 + 2, generator=generator, dtype=torch.float64)
    whole = functional.interpolate(coarse, size=(size + 8, size + 8), mode="bicubic", align_corners=True)
    return whole[..., 4 : 4 + size, 4 + right : 4 + right + size], whole[..., 4 : 4 + size, 4 : 4 + size]


@pytest.fixture
def kornia() -> Any:
    return pytest.importorskip("kornia", reason="registered PSNR needs the extra 'wen' (kornia)")


@pytest.mark.parametrize(("right", "plain", "least"), [(1, 24, 34), (2, 18, 26)])
def test_a_shifted_copy_is_moved_back(kornia: Any, right: int, plain: float, least: float) -> None:
    recon, truth = shifted(32, right)
    assert psnr(recon, truth, data_range=1.0).item() < plain
    assert registered_psnr(recon, truth, data_range=1.0).item() > least


def test_only_what_the_motion_allows_is_undone(kornia: Any) -> None:
    """A picture turned by 8 degrees: a translation cannot mend it, a homography can."""
    _, truth = shifted(32, 0)
    angle = torch.tensor(8.0).deg2rad()
    turn = torch.stack(
        [angle.cos(), -angle.sin(), torch.zeros(()), angle.sin(), angle.cos(), torch.zeros(())]
    )
    grid = functional.affine_grid(turn.double().reshape(1, 2, 3), [1, 1, 32, 32], align_corners=False)
    recon = functional.grid_sample(truth, grid, align_corners=False, padding_mode="border")
    moved = registered_psnr(recon, truth, data_range=1.0, motion="translation", iterations=30)
    turned = registered_psnr(recon, truth, data_range=1.0)
    assert turned.item() > moved.item() + 3
    assert turned.item() > psnr(recon, truth, data_range=1.0).item() + 5


def test_it_is_never_below_plain_psnr_and_a_copy_is_the_cap(kornia: Any) -> None:
    _, truth = shifted(16, 0, n=2, channels=3)
    assert registered_psnr(truth, truth, data_range=1.0).tolist() == [PSNR_CAP] * 2
    recon = torch.stack([truth[1], truth[0] + 0.01 * torch.randn_like(truth[0])])
    plain = psnr(recon, truth, data_range=1.0)
    for lr in (1e-3, 1e3):  # the second one throws the picture out of the frame
        assert (registered_psnr(recon, truth, data_range=1.0, iterations=5, lr=lr) >= plain).all()


def test_noise_gains_little(kornia: Any) -> None:
    _, truth = shifted(32, 0)
    noise = torch.rand_like(truth)
    gain = registered_psnr(noise, truth, data_range=1.0) - psnr(noise, truth, data_range=1.0)
    assert 0 <= gain.item() < 4


def test_units_and_missing_channels_do_not_matter(kornia: Any) -> None:
    recon, truth = shifted(16, 1)
    right = registered_psnr(recon, truth, data_range=1.0, iterations=40)
    scaled = registered_psnr(recon * 255 - 7, truth * 255 - 7, data_range=255.0, iterations=40)
    # the border is repeated, so an offset of all values changes nothing either
    torch.testing.assert_close(scaled, right, rtol=0.02, atol=0)
    flat = registered_psnr(recon[:, 0], truth[:, 0], data_range=1.0, iterations=40)
    torch.testing.assert_close(flat, right)


def test_each_example_has_a_motion_of_its_own(kornia: Any) -> None:
    one, truth = shifted(16, 1)
    two = shifted(16, 2)[0]
    both = registered_psnr(torch.cat([one, two]), torch.cat([truth, truth]), data_range=1.0, iterations=40)
    alone = registered_psnr(two, truth, data_range=1.0, iterations=40)
    torch.testing.assert_close(both[1:], alone)


def test_it_says_why_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert METRICS["registered_psnr"].needs == "the wen extra"
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    reason = "Registered PSNR needs kornia, which is not installed: pip install 'seepage[wen]'."
    assert registered_psnr_available() == (False, reason)
    with pytest.raises(NotApplicable, match="needs kornia"):
        registered_psnr(torch.rand(1, 1, 8, 8), torch.rand(1, 1, 8, 8), data_range=1.0)


@pytest.mark.parametrize(
    ("shape", "options", "reason"),
    [
        ((1, 1, 7, 9), {}, "at least 8 x 8"),
        ((1, 64), {}, "at least 8 x 8"),
        ((1, 1, 8, 8), {"iterations": 0}, "must be positive"),
        ((1, 1, 8, 8), {"lr": float("nan")}, "must be positive"),
        ((1, 1, 8, 8), {"data_range": 0.0}, "data_range"),
    ],
)
def test_what_cannot_be_registered_is_refused(shape: tuple[int, ...], options: Any, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        registered_psnr(torch.rand(shape), torch.rand(shape), **({"data_range": 1.0} | options))
