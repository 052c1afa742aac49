"""Why an attack finds nothing, on folders that a recorder wrote while clients trained on real data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from seepage.engine.diagnosis import diagnosis
from seepage.record.exchanges import RecordedFolder, Recorder, import_update

State = dict[str, Tensor]


def network(*extra: nn.Module) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 40), nn.ReLU(), *extra, nn.Linear(40, 10))


def data(count: int) -> tuple[Tensor, Tensor]:
    digits = load_digits()
    return torch.tensor(digits.data[:count] / 16, dtype=torch.float32), torch.tensor(digits.target[:count])


def trained(
    model: nn.Module, *, optimizer: str = "SGD", lr: float = 0.1, steps: int = 1, examples: int = 8
) -> tuple[State, State]:
    """What the client received and what it has afterwards. The model is in the mode that it is in."""
    received = {name: value.clone() for name, value in model.state_dict().items()}
    x, y = data(examples)
    optim = getattr(torch.optim, optimizer)(model.parameters(), lr=lr)
    for _ in range(steps):
        optim.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optim.step()
    return received, dict(model.state_dict())


def said(folder: Path, build: Callable[[], nn.Module] = network) -> str:
    (one,) = RecordedFolder.open(folder)
    return " ".join(diagnosis(one.exchange(build()), one.info))


@pytest.mark.parametrize("save", ["npz", "pt"])
@pytest.mark.parametrize(("optimizer", "lr"), [("SGD", 0.1), ("SGD", 1e-3), ("Adam", 1e-3), ("AdamW", 1e-2)])
@pytest.mark.parametrize("steps", [1, 7])
def test_a_saved_change_that_is_imported_as_a_gradient(
    tmp_path: Path, save: str, optimizer: str, lr: float, steps: int
) -> None:
    """64 examples of ten classes: neither signs nor label counts of the output layer tell it."""
    received, after = trained(network(), optimizer=optimizer, lr=lr, steps=steps, examples=64)
    delta = {name: after[name] - received[name] for name in received}
    file = tmp_path / f"update.{save}"
    if save == "pt":
        torch.save(delta, file)
    else:
        np.savez(file, **{name: value.numpy() for name, value in delta.items()})
    import_update(file, sent=received, kind="gradient", into=tmp_path / "recorded", examples=64)
    assert "looks like a delta; record it with kind = delta" in said(tmp_path / "recorded")


@pytest.mark.parametrize("steps_before", [0, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_saved_gradient_is_no_change(tmp_path: Path, steps_before: int, dtype: torch.dtype) -> None:
    model = network()
    trained(model, steps=steps_before, examples=64)
    x, y = data(64)
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
    gradient = {n: p.grad.to(dtype) for n, p in model.named_parameters() if p.grad is not None}
    Recorder(tmp_path).write(model.state_dict(), gradient, kind="gradient", round=1, client=0, examples=64)
    assert "looks like a delta" not in said(tmp_path)


def test_new_weights_in_sixteen_bits(tmp_path: Path) -> None:
    received, after = trained(network())
    half = {name: value.half() for name, value in after.items()}
    Recorder(tmp_path).write(received, half, kind="weights", round=1, client=0, examples=8)
    assert "New weights were sent in float16" in said(tmp_path)


def test_several_local_steps(tmp_path: Path) -> None:
    received, after = trained(network(), steps=5)
    local: dict[str, Any] = {"optimizer": "sgd", "lr": 0.1, "epochs": 5, "batch_size": 8}
    Recorder(tmp_path).write(received, after, kind="weights", round=1, client=0, examples=8, local=local)
    assert "There were several local steps" in said(tmp_path)


def test_a_client_that_did_not_train(tmp_path: Path) -> None:
    received, after = trained(network(), steps=0)
    Recorder(tmp_path).write(received, after, kind="weights", round=1, client=0)
    assert "The update is all zeros" in said(tmp_path)


def test_frozen_layers(tmp_path: Path) -> None:
    model = network()
    model[1].requires_grad_(False)
    received, after = trained(model)
    Recorder(tmp_path / "all").write(received, after, kind="weights", round=1, client=0)
    assert "did not change at all ('1.weight' and others)" in said(tmp_path / "all")
    sent = {name: value for name, value in after.items() if not name.startswith("1.")}
    Recorder(tmp_path / "part").write(received, sent, kind="weights", round=1, client=0)
    assert "lacks parameters of the model ('1.weight' and others)" in said(tmp_path / "part")


def test_dropout(tmp_path: Path) -> None:
    received, after = trained(network(nn.Dropout(0.3)).train())
    Recorder(tmp_path).write(received, after, kind="weights", round=1, client=0)
    assert "The model has dropout" in said(tmp_path, lambda: network(nn.Dropout(0.3)))


@pytest.mark.parametrize("train", [True, False])
def test_batch_norm_in_train_mode_is_seen_by_its_statistics(tmp_path: Path, train: bool) -> None:
    received, after = trained(network(nn.BatchNorm1d(40)).train(train))
    Recorder(tmp_path).write(received, after, kind="weights", round=1, client=0)
    found = "Batch norm was in train mode" in said(tmp_path, lambda: network(nn.BatchNorm1d(40)))
    assert found is train
