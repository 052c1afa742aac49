from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from seepage.core.errors import LogError
from seepage.record.exchanges import RecordedFolder, Recorder


def one(folder: Path, client: int = 0, model: nn.Module | None = None, **known: object) -> Path:
    model = nn.Linear(3, 2) if model is None else model
    update = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    return Recorder(folder).write(
        model.state_dict(), update, **{"kind": "gradient", "round": 1, "client": client, **known}
    )


def test_what_is_written_is_read_again_bit_for_bit(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    update = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    Recorder(tmp_path).write(
        model.state_dict(),
        update,
        kind="delta",
        round=7,
        client=12,
        examples=5,
        local={"lr": 0.1, "steps": 1},
    )
    (found,) = RecordedFolder.open(tmp_path)
    exchange = found.exchange(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
    assert exchange.broadcast.round == 7 and exchange.clients == (12,)
    assert exchange.update.num_examples == 5 and exchange.update.buffers is None
    for name, tensor in update.items():
        assert torch.equal(exchange.update.tensors[name], tensor)
    for name, tensor in model.state_dict().items():
        assert torch.equal(exchange.broadcast.model.state_dict()[name], tensor)


def test_only_the_owner_reads_the_files(tmp_path: Path) -> None:
    one(tmp_path / "new")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    modes = {stat.S_IMODE(f.stat().st_mode) for f in (tmp_path / "new").iterdir()}
    assert modes == {0o600}


def test_a_model_that_several_clients_got_is_stored_once(tmp_path: Path) -> None:
    recorder, model = Recorder(tmp_path), nn.Linear(3, 2)
    for client in range(3):
        update = {name: torch.randn_like(p) for name, p in model.named_parameters()}
        recorder.write(model.state_dict(), update, kind="gradient", round=1, client=client)
    files = sorted(tmp_path.glob("*.model.safetensors"))
    assert len(files) == 3 and len({f.stat().st_ino for f in files}) == 1
    recorder.write(nn.Linear(3, 2).state_dict(), update, kind="gradient", round=2, client=0)
    assert len({f.stat().st_ino for f in tmp_path.glob("*.model.safetensors")}) == 2


def test_an_exchange_is_not_replaced_unless_that_is_asked_for(tmp_path: Path) -> None:
    one(tmp_path)
    with pytest.raises(LogError, match="round 1 with client 0 already"):
        one(tmp_path)
    model = nn.Linear(3, 2)
    sent = {name: torch.full_like(p, 4.0) for name, p in model.named_parameters()}
    Recorder(tmp_path, replace=True).write(model.state_dict(), sent, kind="gradient", round=1, client=0)
    assert RecordedFolder.open(tmp_path)[0].tensors("update")["bias"].tolist() == [4.0, 4.0]


def test_views_and_tied_tensors_are_written_as_what_they_hold(tmp_path: Path) -> None:
    whole = torch.arange(6.0)
    Recorder(tmp_path).write(
        {"a": whole, "b": whole}, {"a": whole[:3], "b": whole.view(2, 3).T}, kind="delta", round=0, client=0
    )
    kept = load_file(tmp_path / "round0000-client0000.update.safetensors")
    assert kept["a"].tolist() == [0, 1, 2] and kept["b"].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_the_json_names_the_type_that_was_sent(tmp_path: Path) -> None:
    path = Recorder(tmp_path).write(
        {"a": torch.zeros(2)}, {"a": torch.zeros(2).bfloat16()}, kind="weights", round=1, client=1
    )
    assert json.loads(path.read_text())["dtype"] == "bfloat16"


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LogError, match="is a file"):
        one(tmp_path / "file")


def test_nothing_is_no_exchange(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="no tensor to record"):
        Recorder(tmp_path).write({}, {}, kind="gradient", round=1, client=1)
