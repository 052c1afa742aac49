"""Honest checkpoints with Python objects beside their weights are read, and nothing in them is run."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from research.guard.checkpoints import checkpoint_tensors
from torch import nn


class Harmful:
    """Makes a folder when it is unpickled as pickle does it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


def test_weights_beside_objects_are_read_and_no_object_is_made(tmp_path: Path) -> None:
    net, mark = nn.Linear(4, 3), tmp_path / "was_run"
    saved = {"state_dict": net.state_dict(), "settings": Harmful(mark), "optimizer": {"m": torch.ones(2)}}
    torch.save(saved, tmp_path / "training.pt")
    found = checkpoint_tensors(tmp_path / "training.pt")
    assert not mark.exists()
    assert set(found) == {"weight", "bias"}
    assert torch.equal(found["weight"], net.weight.detach())


def test_a_module_that_was_pickled_whole(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    torch.save(net, tmp_path / "whole.pt")
    found = checkpoint_tensors(tmp_path / "whole.pt")
    assert set(found) == set(net.state_dict())
    assert all(torch.equal(found[name], tensor) for name, tensor in net.state_dict().items())
