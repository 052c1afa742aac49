"""Clipping scales weight and bias gradients alike, so it cannot hide anything; noise can."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from seepage.papers import PAPERS
from seepage.papers.boenisch2021_figure4 import NAME, Setting, measure, recover
from seepage.workloads.data import load_data


@pytest.mark.parametrize("clip", [None, 1.0, 1e-3])
def test_clipping_alone_leaves_the_example_exact(clip: float | None) -> None:
    data = load_data("digits")
    truth, single, pooled = recover(data, Setting("g", "l", clip, 0.0), seed=1, width=50)
    assert torch.allclose(single, truth, atol=1e-5)
    assert torch.allclose(pooled, truth, atol=1e-5)


def test_noise_hides_it_and_pooling_gets_some_back() -> None:
    data = load_data("digits")
    weak = measure(data, Setting("g", "l", 1.0, 1e-3), 0, 50)
    strong = measure(data, Setting("g", "l", 1.0, 1.0), 0, 50)
    assert weak["PSNR"] > strong["PSNR"]
    assert weak["PSNR pooled"] > weak["PSNR"]
    assert strong["PSNR"] < strong["prior"]


def test_is_registered_and_says_when_the_data_are_missing(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    from seepage.errors import DataError

    monkeypatch.setenv("SEEPAGE_DATA", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DataError):
        PAPERS[NAME].run(seeds=1, out=tmp_path, quiet=True)
