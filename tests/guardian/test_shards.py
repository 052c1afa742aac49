"""Models in several files: all of them are looked at, or none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from seepage.core.errors import ModelError
from seepage.core.types import Verdict
from seepage.guardian import guard, guard_file

PARTS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def sharded(folder: Path, model: nn.Module) -> Path:
    """As Hugging Face saves it."""
    state = model.state_dict()
    places = {name: PARTS[number >= 2] for number, name in enumerate(state)}
    for part in PARTS:
        save_file({name: state[name] for name, where in places.items() if where == part}, folder / part)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}), encoding="utf-8")
    return index


@pytest.mark.parametrize("crafted", [False, True])
def test_the_verdict_is_that_of_one_file(tmp_path: Path, crafted: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    if crafted:
        with torch.no_grad():
            model.get_parameter("2.weight")[1:] = 0
    report = guard_file(sharded(tmp_path, model))
    assert report.verdict is guard(model).verdict
    assert (report.verdict is Verdict.CLEAN) is not crafted
    assert set(report.layers.read) == {"0", "2"}


def test_one_part_alone_is_refused(tmp_path: Path) -> None:
    sharded(tmp_path, nn.Sequential(nn.Linear(64, 100), nn.Linear(100, 10)))
    for part in PARTS:
        with pytest.raises(ModelError, match="one of 2 parts"):
            guard_file(tmp_path / part)


def test_an_index_that_does_not_hold_is_refused(tmp_path: Path) -> None:
    index = sharded(tmp_path, nn.Sequential(nn.Linear(64, 100), nn.Linear(100, 10)))
    written = json.loads(index.read_text(encoding="utf-8"))
    for places, says in (
        ({**written["weight_map"], "2.weight": PARTS[0]}, "do not hold"),
        ({"a": "../secret.safetensors"}, "no files beside it"),
        ({}, "no files beside it"),
    ):
        if says == "do not hold":
            places["hidden.weight"] = PARTS[1]
        index.write_text(json.dumps({"weight_map": places}), encoding="utf-8")
        with pytest.raises(ModelError, match=says):
            guard_file(index)
    for broken in ("{", "[]", '{"weight_map": 3}'):
        index.write_text(broken, encoding="utf-8")
        with pytest.raises(ModelError, match="no index of weights"):
            guard_file(index)


@pytest.mark.parametrize("name", ["m.gguf", "m.onnx", "m.h5", "m.keras"])
def test_other_formats_get_one_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"GGUF" + bytes(64))
    with pytest.raises(ModelError, match="does not look like a weights file"):
        guard_file(tmp_path / name)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_changes_no_verdict(tmp_path: Path, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    for wanted in (Verdict.CLEAN, Verdict.TRAP):
        save_file({n: t.to(dtype) for n, t in model.state_dict().items()}, tmp_path / "half.safetensors")
        assert guard_file(tmp_path / "half.safetensors").verdict is wanted
        with torch.no_grad():
            model.get_parameter("2.weight")[1:] = 0
