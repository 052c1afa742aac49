"""Picture metrics against scikit-image, and LPIPS' promise never to download or make up a network."""

from __future__ import annotations

import hashlib
import importlib.util
import math
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
import torchmetrics.functional.image.lpips  # noqa: F401 - before any test replaces torchvision
from skimage.metrics import mean_squared_error, peak_signal_noise_ratio, structural_similarity
from torch import nn

from seepage.core.errors import DataError, NotApplicable
from seepage.metrics import PSNR_CAP, image, lpips, lpips_available, mse, pairs, psnr, ssim


def noisy_pictures(shape: tuple[int, ...], seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    truth = torch.rand(shape, generator=generator)
    return (truth + 0.2 * torch.randn(shape, generator=generator)).clamp(0, 1), truth


def test_mse_and_psnr_agree_with_scikit_image() -> None:
    recon, truth = noisy_pictures((4, 3, 10, 12))
    for i in range(4):
        r, t = recon[i].double().numpy(), truth[i].double().numpy()
        assert mse(recon, truth)[i].item() == pytest.approx(mean_squared_error(t, r), rel=1e-9)
        for data_range in (1.0, 2.0):
            expected = peak_signal_noise_ratio(t, r, data_range=data_range)
            assert psnr(recon, truth, data_range=data_range)[i].item() == pytest.approx(expected, rel=1e-9)


def test_psnr_of_a_copy_is_the_cap_and_finite() -> None:
    _, truth = noisy_pictures((2, 1, 5, 5))
    assert psnr(truth, truth, data_range=1.0).tolist() == [PSNR_CAP, PSNR_CAP]
    assert psnr(truth + 1e-7, truth, data_range=1.0).max() <= PSNR_CAP


@pytest.mark.parametrize(
    ("channels", "height", "width", "window"),
    [
        (3, 32, 32, 11),
        (1, 28, 28, 11),
        (1, 25, 25, 11),
        (1, 11, 11, 11),
        (1, 10, 30, 9),
        (3, 8, 8, 7),
        (1, 3, 3, 3),
    ],
)
def test_ssim_agrees_with_scikit_image(channels: int, height: int, width: int, window: int) -> None:
    recon, truth = noisy_pictures((3, channels, height, width), seed=height)
    assert image.ssim_kernel(height, width) == window
    ours = ssim(recon, truth, data_range=1.0)
    for i in range(3):
        expected = structural_similarity(
            truth[i].double().numpy(),
            recon[i].double().numpy(),
            channel_axis=0,
            gaussian_weights=True,
            sigma=1.5 * (window // 2) / 5,
            use_sample_covariance=False,
            data_range=1.0,
        )
        assert ours[i].item() == pytest.approx(expected, abs=1e-9)


def test_rounding_makes_no_similarity_above_one_or_below_minus_one() -> None:
    """Of large values the variance is a difference of larger squares, which may come out negative.

    Flat pictures have none: equal ones are equal, and of others only the means a and b count.
    """
    flat = torch.tensor([0.1, 0.7, 3e3, 1e8 + 0.3]).reshape(-1, 1, 1, 1).expand(-1, 1, 16, 16).double()
    assert ssim(flat, flat, data_range=1.0).tolist() == [1.0] * 4
    a, b = flat[:, 0, 0, 0], 0.4
    expected = (2 * a * b + 1e-4) / (a.square() + b**2 + 1e-4)
    torch.testing.assert_close(ssim(flat, torch.full_like(flat, b), data_range=1.0), expected)
    wild = torch.randn(40, 1, 16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    wild = 10.0 ** torch.arange(40).reshape(-1, 1, 1, 1).div(4) * (1 + 1e-9 * wild)
    for other in (wild, wild.roll(1, 0), torch.rand(wild.shape, dtype=torch.float64)):
        assert float(ssim(wild, other, data_range=1.0).abs().max()) <= 1.0


def test_ssim_depends_on_the_data_range_and_only_on_its_ratio() -> None:
    recon, truth = noisy_pictures((2, 1, 16, 16))
    right = ssim(recon, truth, data_range=1.0)
    torch.testing.assert_close(ssim(recon * 255, truth * 255, data_range=255.0), right, rtol=1e-5, atol=1e-6)
    assert (ssim(recon, truth, data_range=255.0) - right).abs().min() > 0.05  # the peers' mistake


def test_each_example_is_scored_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    recon, truth = noisy_pictures((5, 3, 12, 12))
    alone = torch.cat([ssim(recon[i : i + 1], truth[i : i + 1], data_range=1.0) for i in range(5)])
    torch.testing.assert_close(ssim(recon, truth, data_range=1.0), alone, rtol=1e-12, atol=1e-12)
    monkeypatch.setattr(pairs, "BLOCK", 3 * 144 * 2)  # two examples at a time
    torch.testing.assert_close(ssim(recon, truth, data_range=1.0), alone, rtol=1e-12, atol=1e-12)


def test_pictures_without_a_channel_axis_and_no_pictures() -> None:
    recon, truth = noisy_pictures((2, 1, 9, 9))
    assert torch.equal(ssim(recon[:, 0], truth[:, 0], data_range=1.0), ssim(recon, truth, data_range=1.0))
    assert ssim(recon[:0], truth[:0], data_range=1.0).shape == (0,)


@pytest.mark.parametrize("data_range", [0.0, -1.0, math.nan, math.inf])
def test_an_impossible_data_range_is_refused(data_range: float) -> None:
    recon, truth = noisy_pictures((1, 1, 8, 8))
    for metric in (psnr, ssim):
        with pytest.raises(DataError, match="positive and finite"):
            metric(recon, truth, data_range=data_range)


def test_bad_pairs_are_refused_in_words() -> None:
    recon, truth = noisy_pictures((2, 1, 8, 8))
    with pytest.raises(DataError, match="assign"):
        mse(recon[:1], truth)
    with pytest.raises(DataError, match="NaN"):
        psnr(recon * math.nan, truth, data_range=1.0)
    with pytest.raises(DataError, match="3 x 3"):
        ssim(recon[..., :2], truth[..., :2], data_range=1.0)


def give_torchvision(monkeypatch: pytest.MonkeyPatch, hub: Path) -> None:
    """Pretend that torchvision is installed and that torch's hub cache is `hub`."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: ModuleSpec(name, None))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(hub))


def test_lpips_says_why_it_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_download(*_: object, **__: object) -> None:
        raise AssertionError("LPIPS tried to download a network")

    monkeypatch.setattr(torch.hub, "download_url_to_file", no_download)
    give_torchvision(monkeypatch, tmp_path)
    available, reason = lpips_available()
    assert not available and "weights" in reason
    with pytest.raises(NotApplicable, match="does not download"):
        lpips(torch.rand(1, 3, 32, 32), torch.rand(1, 3, 32, 32), value_range=(0.0, 1.0))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert lpips_available() == (False, "LPIPS needs torchvision, which is not installed.")


def test_lpips_refuses_a_broken_torchvision_and_damaged_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "checkpoints" / "alexnet-owt-7be5be79.pth"
    broken.parent.mkdir()
    broken.write_bytes(b"not the published file")
    give_torchvision(monkeypatch, tmp_path)
    monkeypatch.setitem(sys.modules, "torchvision", None)  # an import of it raises ImportError
    available, reason = lpips_available()
    assert not available and "cannot be imported" in reason
    monkeypatch.setitem(sys.modules, "torchvision", ModuleType("torchvision"))
    assert lpips_available() == (True, "")
    with pytest.raises(DataError, match="damaged"):
        lpips(torch.rand(1, 3, 32, 32), torch.rand(1, 3, 32, 32), value_range=(0.0, 1.0))


def alexnet_features() -> nn.Sequential:
    """AlexNet's convolutions with fixed weights, to check the code around the network."""
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(3, 64, 11, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(64, 192, 5, padding=2),
        nn.ReLU(),
    ]
    layers += [
        nn.MaxPool2d(3, 2),
        nn.Conv2d(192, 384, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1),
    ]
    return nn.Sequential(*layers, nn.ReLU(), nn.Conv2d(256, 256, 3, padding=1), nn.ReLU())


def test_lpips_scales_values_and_repeats_grey_channels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    content = b"stands for the published weights"
    name = f"alexnet-owt-{hashlib.sha256(content).hexdigest()[:8]}.pth"
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / name).write_bytes(content)
    monkeypatch.setattr(image, "_LPIPS_BACKBONE", name)
    give_torchvision(monkeypatch, tmp_path)
    stand_in = ModuleType("torchvision")
    stand_in.models = SimpleNamespace(  # type: ignore[attr-defined]
        AlexNet_Weights=SimpleNamespace(DEFAULT=None),
        alexnet=lambda weights: SimpleNamespace(features=alexnet_features()),
    )
    monkeypatch.setitem(sys.modules, "torchvision", stand_in)
    monkeypatch.setattr("torchmetrics.functional.image.lpips._TORCHVISION_AVAILABLE", True)
    recon, truth = noisy_pictures((2, 1, 31, 31))
    ours = lpips(recon, truth, value_range=(0.0, 1.0))
    assert ours.shape == (2,) and (ours > 0).all()
    torch.testing.assert_close(lpips(recon * 255 - 9, truth * 255 - 9, value_range=(-9.0, 246.0)), ours)
    colour = lpips(recon.repeat(1, 3, 1, 1), truth.repeat(1, 3, 1, 1), value_range=(0.0, 1.0))
    torch.testing.assert_close(colour, ours)
    assert lpips(truth[:1], truth[:1], value_range=(0.0, 1.0)).tolist() == [0.0]


def test_lpips_refuses_pictures_its_network_cannot_take() -> None:
    with pytest.raises(DataError, match="31 pixels"):
        lpips(torch.rand(1, 1, 28, 28), torch.rand(1, 1, 28, 28), value_range=(0.0, 1.0))
