from __future__ import annotations

from pathlib import Path

import torch
from flwr.serverapp.strategy import FedAvg, FedMedian
from torch import nn

from seepage.integrations.flower import RecordingStrategy, record
from seepage.record.exchanges import RecordedFolder

from .test_mod import client, run


def test_the_server_records_what_the_clients_record(tmp_path: Path) -> None:
    torch.manual_seed(0)
    around = RecordingStrategy(FedAvg(), tmp_path / "server")
    run(client(record(tmp_path / "client")), around)
    server, mine = RecordedFolder.open(tmp_path / "server"), RecordedFolder.open(tmp_path / "client")
    assert [(e.info.round, e.info.client - 1) for e in server] == [
        (e.info.round, e.info.client) for e in mine
    ]
    for one, other in zip(server, mine, strict=True):
        assert one.info.checksums == other.info.checksums


def test_the_strategy_inside_does_what_it_did(tmp_path: Path) -> None:
    torch.manual_seed(0)
    plain = run(client(), FedMedian())
    torch.manual_seed(0)
    around = run(client(), RecordingStrategy(FedMedian(), tmp_path, rounds=[1]))
    for name, tensor in plain.arrays.to_torch_state_dict().items():
        assert torch.equal(tensor, around.arrays.to_torch_state_dict()[name])
    assert {one.info.round for one in RecordedFolder.open(tmp_path)} == {1}
    assert RecordedFolder.open(tmp_path)[0].exchange(nn.Linear(2, 2)).update.num_examples == 4
