"""The gate for files and on the command line, with its exit codes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

from seepage.cli import app
from seepage.core.errors import SpecError
from seepage.core.types import Broadcast, LocalTraining
from seepage.data import load_data
from seepage.gating import gate_file
from seepage.protocol import client


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "mine.npz", x=rng.random((4, 1, 8, 8), dtype=np.float32), y=np.arange(4) % 3)
    return tmp_path / "mine.npz"


def test_exit_codes_say_what_was_measured(mine: Path) -> None:
    run = CliRunner()
    leaking = run.invoke(app, ["gate", "mlp", "--data", str(mine), "--quick"])
    assert leaking.exit_code == 1 and "block" in leaking.output
    allowed = run.invoke(app, ["gate", "mlp", "--data", str(mine), "--quick", "--threshold", "1", "--json"])
    assert allowed.exit_code == 0 and '"answer": "pass"' in allowed.output
    assert run.invoke(app, ["gate", "mlp", "--data", str(mine.with_name("no.npz"))]).exit_code == 2


def test_an_update_from_a_file_is_what_is_measured(mine: Path) -> None:
    data = load_data(str(mine))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 3))
    save_file(model.state_dict(), mine.with_name("w.safetensors"))
    sent = client(LocalTraining())(Broadcast(model), data.batch(torch.arange(4)))
    files = {"weights": mine.with_name("w.safetensors"), "update": mine.with_name("u.safetensors")}
    options = {"data": str(mine), "advice": False, "budget": 0.05}
    save_file(dict(sent.tensors), files["update"])
    assert gate_file(model, **files, **options).exposed == [0, 1, 2, 3]
    save_file({n: torch.zeros_like(t) for n, t in sent.tensors.items()}, files["update"])
    assert gate_file(model, **files, **options).exposed == []
    with pytest.raises(SpecError, match="the very batch behind it"):
        gate_file(model, **files, **options, limit=2)


def test_a_model_that_nothing_can_read_is_not_measured(mine: Path) -> None:
    pooled = nn.Sequential(nn.Conv2d(1, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert gate_file(pooled, data=str(mine), quick=True).answer == "not measured"
