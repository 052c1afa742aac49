"""What is shown while a slow attack runs."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from seepage.core.progress import Clock, Progress, current_listener, listening
from seepage.core.types import InputSpec, Modality
from seepage.engine.live import draw_strip, watching

SPEC = InputSpec(modality=Modality.IMAGE, shape=(1, 4, 5), num_classes=2, mean=(0.5,), std=(0.5,))


def step(inputs: torch.Tensor) -> Progress:
    return Progress(step=1, steps=2, objective=0.5, seconds_left=1.0, inputs=inputs)


def test_the_strip_shows_the_candidates_side_by_side_in_raw_units() -> None:
    raw = torch.randint(256, (3, 1, 4, 5)) / 255
    png = draw_strip(step(SPEC.to_model(raw)[None]), SPEC)
    pixels = np.asarray(Image.open(io.BytesIO(png)))
    expected = (torch.cat(list(raw[:, 0]), dim=1) * 255).round().byte().numpy()
    assert np.array_equal(pixels, expected)


def test_steps_are_reported_and_the_strip_goes_when_the_attack_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seepage.engine.live._EVERY", -1.0)
    seen: list[int] = []
    strip = tmp_path / "cell.live.png"
    with listening(lambda progress: seen.append(progress.step)), watching(strip, SPEC):
        Clock(seconds=None).report(step=4, steps=9, objective=1.0, inputs=torch.zeros(1, 2, 1, 4, 5))
        assert strip.is_file()
    assert seen == [4]
    assert not strip.exists()


def test_a_search_without_candidates_has_no_strip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As unmixing reports its rounds; drawing nothing used to end the audit's cell."""
    monkeypatch.setattr("seepage.engine.live._EVERY", -1.0)
    strip = tmp_path / "cell.live.png"
    with watching(strip, SPEC):
        Clock(seconds=None).report(step=4, steps=9, objective=1.0, inputs=torch.empty(0))
        assert not strip.exists()


def test_a_search_for_other_things_than_pictures_draws_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seepage.engine.live._EVERY", -1.0)
    with watching(tmp_path / "strip.png", SPEC):
        listener = current_listener()
        assert listener is not None
        listener(step(torch.rand(7)))
        assert not (tmp_path / "strip.png").exists()
        listener(step(torch.rand(1, 2, 1, 4, 5)))
        assert (tmp_path / "strip.png").exists()
