from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

import seepage
from seepage.core.errors import SpecError
from seepage.core.types import Batch, Broadcast, LocalTraining
from seepage.integrations.flower import record, record_app
from seepage.integrations.flower.app import _Watched, simulate
from seepage.integrations.flower.grid import task as flower_task
from seepage.protocol import local_update

LOCAL = {"optimizer": "sgd", "lr": 0.1, "epochs": 1, "batch_size": 8}


def test_an_unchanged_app_is_run_and_recorded(tmp_path: Path, example: Path) -> None:
    recorded = record_app(example, tmp_path / "recorded", nodes=3, rounds=[2], clients=[0, 2])
    assert [(e.info.round, e.info.client, e.info.examples) for e in recorded] == [(2, 0, 8), (2, 2, 8)]
    assert recorded[0].info.kind == "weights" and recorded[0].info.dtype == "float32"


def test_what_is_recorded_is_what_our_own_client_sends(tmp_path: Path, example: Path) -> None:
    """The app's training and ours, on the same model and examples: the same numbers, bit for bit."""
    recorded = record_app(example, tmp_path / "recorded", nodes=2, rounds=[1])
    task = importlib.import_module("digits_app.task")
    for one in recorded:
        exchange = one.exchange(task.Net())
        batch = Batch(*task.load_data(one.info.client))
        training = LocalTraining(algorithm="fedavg", lr=0.1, batch_size=8)
        ours = local_update(Broadcast(exchange.broadcast.model), batch, training)
        for name, tensor in ours.tensors.items():
            assert torch.equal(tensor, exchange.update.tensors[name]), name


def test_a_recorded_app_is_audited_with_its_own_data_as_the_truth(tmp_path: Path, example: Path) -> None:
    record_app(example, tmp_path / "recorded", nodes=2, rounds=[1], clients=[1], local=LOCAL)
    task = importlib.import_module("digits_app.task")
    found = seepage.audit(
        model=task.Net, data=task.load_data, recorded=tmp_path / "recorded", attacks="analytic_extraction",
        out=tmp_path / "out", engine="here", on_plan=lambda header: None,
        data_options={"num_classes": 10, "value_range": (0.0, 1.0)},
    )  # fmt: skip
    (cell,) = [c for c in found.cells if c.attack.name == "analytic_extraction"]
    assert cell.status == "done" and cell.space == "fc1" and len(cell.examples) == 8
    assert cell.batch_scores["label_accuracy"] == 1.0


def test_a_folder_that_is_no_app_gets_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="is no Flower app"):
        record_app(tmp_path, tmp_path / "recorded")
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    with pytest.raises(SpecError, match="is no Flower app"):
        record_app(tmp_path, tmp_path / "recorded")


def test_a_recording_is_not_mixed_with_another(tmp_path: Path, example: Path) -> None:
    record_app(example, tmp_path / "recorded", nodes=2, rounds=[1], clients=[0])
    with pytest.raises(SpecError, match="is not empty"):
        record_app(example, tmp_path / "recorded", nodes=2)


def test_nothing_to_record_says_why(tmp_path: Path, example: Path) -> None:
    with pytest.raises(SpecError, match=r"no client of .* sent an update"):
        record_app(example, tmp_path / "recorded", nodes=2, rounds=[9])
    with pytest.raises(SpecError, match=r"had others train: in round 1 clients 0 and 1; in round 2"):
        record_app(example, tmp_path / "seventh", nodes=2, clients=[7])
    with pytest.raises(SpecError, match=r"first failure of a client|did not finish"):
        record_app(example, tmp_path / "other", nodes=2, config={"examples-per-client": "eight"})


def test_a_client_is_told_the_settings_and_flower_gets_its_context_back_unchanged(tmp_path: Path) -> None:
    """With Ray, Flower throws away every reply of a client whose run_config is another one than before."""
    app, seen = ClientApp(), []

    @app.train()
    def train(message: Message, context: Context) -> Message:
        seen.append(dict(context.run_config))
        return Message(RecordDict(), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        seen.append(dict(context.run_config))
        raise RuntimeError("scanner offline")

    watched = _Watched(app, record(tmp_path), None, {"batch-size": 8})
    context = Context(run_id=1, node_id=1, node_config={"partition-id": 0}, state=RecordDict(), run_config={})
    with flower_task():
        watched(Message(RecordDict(), dst_node_id=1, message_type="train", group_id="1"), context)
        assert context.run_config == {}
        with pytest.raises(RuntimeError, match="scanner offline"):
            watched(Message(RecordDict(), dst_node_id=1, message_type="evaluate", group_id="1"), context)
    assert context.run_config == {} and seen == [{"batch-size": 8}, {"batch-size": 8}]


def test_what_the_server_raised_is_said_beside_a_client_s_failure() -> None:
    """A client that is offline does not end a round; what does is what has to be mended."""
    client, server = ClientApp(), ServerApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        raise RuntimeError("scanner offline")

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        list(grid.send_and_receive([grid.create_message(RecordDict(), "train", 1, "1")]))
        raise ValueError("two array records in a reply")

    said = r"did not finish: .*two array records.* The first failure of a client: .*scanner offline"
    with pytest.raises(SpecError, match=said):
        simulate(server, client, nodes=1)
