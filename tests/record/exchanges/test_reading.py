from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from seepage.core.errors import LogError
from seepage.core.types import UpdateKind
from seepage.record.exchanges import RecordedFolder, Recorder

NAME = "round0001-client0000"


def recorded(folder: Path, **known: object) -> nn.Module:
    model = nn.Linear(3, 2)
    update = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    Recorder(folder).write(
        model.state_dict(), update, **{"kind": "gradient", "round": 1, "client": 0, **known}
    )
    return model


def test_new_weights_become_the_difference(tmp_path: Path) -> None:
    old, new = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    new.weight.data.add_(0.5)
    new.running_mean.add_(2.0)
    Recorder(tmp_path).write(old.state_dict(), new.state_dict(), kind="weights", round=1, client=0)
    update = RecordedFolder.open(tmp_path)[0].exchange(nn.BatchNorm1d(2)).update
    assert update.kind is UpdateKind.DELTA
    assert update.tensors["weight"].tolist() == [0.5, 0.5]
    assert update.buffers is not None and update.buffers["running_mean"].tolist() == [2.0, 2.0]


def test_differences_of_buffers_are_added_to_the_received_ones(tmp_path: Path) -> None:
    old = nn.BatchNorm1d(1)
    moved = {"weight": torch.ones(1), "running_mean": torch.tensor([3.0]), "running_var": torch.tensor([1.0])}
    Recorder(tmp_path).write(old.state_dict(), moved, kind="delta", buffers="differences", round=1, client=0)
    update = RecordedFolder.open(tmp_path)[0].exchange(nn.BatchNorm1d(1)).update
    assert update.buffers is not None
    assert update.buffers["running_mean"].item() == 3.0 and update.buffers["running_var"].item() == 2.0


def test_parameters_that_were_not_sent_are_frozen(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    Recorder(tmp_path).write(model.state_dict(), {"bias": torch.ones(2)}, kind="gradient", round=1, client=0)
    exchange = RecordedFolder.open(tmp_path)[0].exchange(nn.Linear(3, 2))
    assert not exchange.broadcast.model.weight.requires_grad and exchange.broadcast.model.bias.requires_grad
    assert list(exchange.update.tensors) == ["bias"]


def test_exchanges_come_in_the_order_of_rounds_and_clients(tmp_path: Path) -> None:
    for number, client in ((10, 1), (2, 30000), (2, 4)):
        recorded(tmp_path, round=number, client=client)
    found = [(e.info.round, e.info.client) for e in RecordedFolder.open(tmp_path)]
    assert found == [(2, 4), (2, 30000), (10, 1)]


def _truncate(folder: Path) -> None:
    file = folder / f"{NAME}.update.safetensors"
    file.write_bytes(file.read_bytes()[:-5])


def _lie_about_sizes(folder: Path) -> None:
    header = b'{"weight":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,9999999999999]}}'
    (folder / f"{NAME}.update.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)


def _huge_header(folder: Path) -> None:
    (folder / f"{NAME}.update.safetensors").write_bytes((2**62).to_bytes(8, "little") + b"{}")


def _change(**values: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / f"{NAME}.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "checksums": {}, **values}))

    return change


def _not_json(folder: Path) -> None:
    (folder / f"{NAME}.json").write_bytes(b"\x80\x04garbage")


def _without_update(folder: Path) -> None:
    (folder / f"{NAME}.update.safetensors").unlink()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_truncate, "its checksum is another"),
        (lambda folder: (_change()(folder), _truncate(folder)), "truncated, damaged or no safetensors"),
        (
            lambda folder: (_change()(folder), _lie_about_sizes(folder)),
            "truncated, damaged or no safetensors",
        ),
        (lambda folder: (_change()(folder), _huge_header(folder)), "truncated, damaged or no safetensors"),
        (_without_update, "cannot be read"),
        (_not_json, "does not describe an exchange"),
        (_change(kind="sum"), "does not describe an exchange"),
        (_change(examples=-1), "does not describe an exchange"),
        (_change(surprise=1), "does not describe an exchange"),
        (_change(round=2), "its files were renamed"),
        (_change(format_version=99), "version 99 of the format"),
    ],
)
def test_a_damaged_or_hostile_file_gets_one_sentence(
    tmp_path: Path, damage: Callable[[Path], object], said: str
) -> None:
    recorded(tmp_path)
    damage(tmp_path)
    with pytest.raises(LogError, match=said) as found:
        RecordedFolder.open(tmp_path)[0].exchange(nn.Linear(3, 2))
    assert "\n" not in str(found.value) and len(str(found.value)) < 500


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.Linear(3, 4), "in the model: the two must belong"),
        (nn.Linear(3, 2, bias=False), "a tensor 'bias' that the model does not have"),
        (nn.Sequential(nn.Linear(3, 2)), "that the model does not have"),
    ],
)
def test_another_model_is_refused(tmp_path: Path, model: nn.Module, said: str) -> None:
    recorded(tmp_path)
    with pytest.raises(LogError, match=said):
        RecordedFolder.open(tmp_path)[0].exchange(model)


def test_a_model_with_nan_is_refused(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    update = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    model.bias.data.fill_(torch.nan)
    Recorder(tmp_path).write(model.state_dict(), update, kind="gradient", round=1, client=0)
    with pytest.raises(LogError, match="NaN"):
        RecordedFolder.open(tmp_path)[0].exchange(nn.Linear(3, 2))


def test_a_folder_without_exchanges_says_what_is_looked_for(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"round0001-client0001\.json"):
        RecordedFolder.open(tmp_path)
    with pytest.raises(LogError, match="is no folder"):
        RecordedFolder.open(tmp_path / "absent")
