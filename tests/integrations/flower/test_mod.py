from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, FedAvg
from torch import nn

from seepage.core.errors import LogError
from seepage.core.types import Batch, Broadcast, LocalTraining
from seepage.defenses.dp_sgd import dp_sgd
from seepage.integrations.flower import InProcessGrid, gatekeeper, record
from seepage.integrations.flower.grid import task
from seepage.protocol import client as local_client
from seepage.record.exchanges import RecordedFolder


def client(*mods: Any) -> ClientApp:
    """Adds one to every weight."""
    app = ClientApp()

    @app.train(mods=list(mods))
    def train(message: Message, context: Context) -> Message:
        state = message.content["arrays"].to_torch_state_dict()
        moved = ArrayRecord({name: tensor + 1.0 for name, tensor in state.items()})
        content = RecordDict({"arrays": moved, "metrics": MetricRecord({"num-examples": 4})})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(
            RecordDict({"metrics": MetricRecord({"num-examples": 4, "loss": 1.0})}), reply_to=message
        )

    return app


def run(app: ClientApp, strategy: Any, *, rounds: int = 2) -> Any:
    with task():
        return strategy.start(
            InProcessGrid(app, nodes=2),
            ArrayRecord(nn.Linear(2, 2).state_dict()),
            num_rounds=rounds,
            train_config=ConfigRecord({"lr": 0.1}),
        )


def test_one_line_records_every_exchange(tmp_path: Path) -> None:
    run(client(record(tmp_path, local={"lr": 0.1, "steps": 1})), FedAvg())
    recorded = RecordedFolder.open(tmp_path)
    assert [(e.info.round, e.info.client) for e in recorded] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    for one in recorded:
        change = one.exchange(nn.Linear(2, 2)).update
        assert change.num_examples == 4 and torch.allclose(change.tensors["weight"], torch.ones(2, 2))
    assert recorded[0].info.local.lr == 0.1
    # the second round starts from what the first one gave
    assert torch.allclose(recorded[2].tensors("model")["bias"], recorded[0].tensors("update")["bias"])


def test_only_these_rounds(tmp_path: Path) -> None:
    run(client(record(tmp_path, rounds=[2])), FedAvg())
    assert {one.info.round for one in RecordedFolder.open(tmp_path)} == {2}


def test_the_first_mod_sees_the_filtered_update_and_the_last_one_the_plain(tmp_path: Path) -> None:
    strategy = DifferentialPrivacyClientSideFixedClipping(
        FedAvg(), noise_multiplier=0.0001, clipping_norm=0.5, num_sampled_clients=2
    )
    run(client(record(tmp_path / "outer"), fixedclipping_mod, record(tmp_path / "inner")), strategy, rounds=1)

    def length(folder: str) -> float:
        exchange = RecordedFolder.open(tmp_path / folder)[0].exchange(nn.Linear(2, 2))
        return float(torch.cat([t.flatten() for t in exchange.update.tensors.values()]).norm())

    assert abs(length("inner") - 6**0.5) < 1e-4 and abs(length("outer") - 0.5) < 1e-4


def test_the_gatekeeper_withholds_what_leaks_and_lets_pass_what_may() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(9, 12), nn.ReLU(), nn.Linear(12, 3))
    batch = Batch(torch.rand(2, 9), torch.arange(2))
    local = LocalTraining(algorithm="fedavg", lr=0.1)

    def app(**options: Any) -> ClientApp:
        made = ClientApp()
        keeper = gatekeeper(net, lambda context: batch, local=local, budget=0.05, **options)

        @made.train(mods=[keeper])
        def train(message: Message, context: Context) -> Message:
            own = nn.Sequential(nn.Linear(9, 12), nn.ReLU(), nn.Linear(12, 3))
            own.load_state_dict(message.content["arrays"].to_torch_state_dict())
            change = local_client(local)(Broadcast(own), batch).tensors
            moved = ArrayRecord({n: t.detach() + change[n] for n, t in own.state_dict().items()})
            content = RecordDict({"arrays": moved, "metrics": MetricRecord({"num-examples": 3})})
            return Message(content, reply_to=message)

        return made

    def answer(**options: Any) -> Message:
        content = RecordDict({"arrays": ArrayRecord(net.state_dict())})
        with task():
            grid = InProcessGrid(app(**options), nodes=1)
            (node,) = grid.get_node_ids()
            sent = grid.create_message(content, "train", node, "1")
            (reply,) = grid.send_and_receive([sent])
        return reply

    assert answer().has_error()
    passed, noisy = answer(threshold=1.0), answer(action="noise")
    weights = [m.content["arrays"].to_torch_state_dict()["0.weight"] for m in (passed, noisy)]
    assert not torch.equal(weights[0], weights[1]) and not torch.equal(weights[1], net[0].weight)
    # The noise is nobody else's: two clients that set one and the same seed differ in every weight.
    twins = []
    for _ in range(2):
        torch.manual_seed(7)
        twins.append(answer(action="noise").content["arrays"].to_torch_state_dict())
    assert all(bool((twins[0][name] != twins[1][name]).all()) for name in twins[0])


def test_a_private_client_in_an_app_draws_noise_that_no_seed_repeats() -> None:
    net = nn.Linear(9, 3)
    batch = Batch(torch.rand(4, 9), torch.arange(4) % 3)
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.manual_seed(0)  # as apps do that want to be repeatable
        own = nn.Linear(9, 3)
        own.load_state_dict(message.content["arrays"].to_torch_state_dict())
        private = local_client(LocalTraining(), [dp_sgd(clip=1.0, sigma=1.0)])
        found = private(Broadcast(own), batch).tensors
        content = RecordDict({"arrays": ArrayRecord(found), "metrics": MetricRecord({"num-examples": 4})})
        return Message(content, reply_to=message)

    with task():
        grid = InProcessGrid(app, nodes=2)
        content = RecordDict({"arrays": ArrayRecord(net.state_dict())})
        sent = [grid.create_message(content, "train", node, "1") for node in grid.get_node_ids()]
        one, two = (m.content["arrays"].to_torch_state_dict() for m in grid.send_and_receive(sent))
    assert all(bool((one[name] != two[name]).all()) for name in one)
    # the same data, so that all of the difference is noise: of two draws, 1 / 4 each (the mean of four)
    spread = torch.cat([(one[n] - two[n]).flatten() for n in one]).std()
    assert 0.2 < float(spread) < 0.55


def test_an_app_with_a_recorder_can_be_sent_to_another_process(tmp_path: Path) -> None:
    """Flower's Ray backend pickles the ClientApp as Ray does, by cloudpickle."""
    cloudpickle = pytest.importorskip("ray.cloudpickle")
    mod = cloudpickle.loads(cloudpickle.dumps(record(tmp_path / "recorded")))
    assert callable(mod)


def with_controls(name: str, folder: Path) -> None:
    """One exchange as of SCAFFOLD: control variates travel beside the weights, by the same names."""
    app, weights = ClientApp(), nn.Linear(2, 2).state_dict()
    controls = ArrayRecord({n: torch.full_like(t, 9.0) for n, t in weights.items()})

    @app.train(mods=[record(folder)])
    def train(message: Message, context: Context) -> Message:
        state = message.content[name].to_torch_state_dict()
        moved = ArrayRecord({n: tensor + 1.0 for n, tensor in state.items()})
        return Message(RecordDict({name: moved, "controls": controls}), reply_to=message)

    grid = InProcessGrid(app, nodes=1)
    with task():
        content = RecordDict({name: ArrayRecord(weights), "controls": controls})
        list(grid.send_and_receive([grid.create_message(content, "train", 1, "1")]))
    for failure in grid.failures:
        raise LogError(failure)


def test_control_variates_are_not_taken_for_the_model(tmp_path: Path) -> None:
    with_controls("arrays", tmp_path)
    (one,) = RecordedFolder.open(tmp_path)
    assert torch.allclose(one.exchange(nn.Linear(2, 2)).update.tensors["weight"], torch.ones(2, 2))


def test_which_record_is_the_model_is_not_guessed(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="name the model's record 'arrays'"):
        with_controls("weights", tmp_path)
