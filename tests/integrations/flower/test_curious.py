from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

from seepage.core.errors import NotApplicable, SpecError
from seepage.core.types import Batch, Broadcast, InputSpec, LocalTraining, Modality
from seepage.data import load_data
from seepage.integrations.flower import Curious, InProcessGrid
from seepage.integrations.flower.grid import task
from seepage.metrics import exact_match
from seepage.protocol import local_update

DIGITS = load_data("digits")
LOCAL = LocalTraining(algorithm="fedavg", lr=0.1)
INPUT = InputSpec(modality=Modality.IMAGE, shape=(1, 8, 8), num_classes=10)


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 10))


def batch(partition: int) -> Batch:
    return DIGITS.batch(torch.arange(20 * partition, 20 * partition + 20))


def client() -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = network()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        mine = batch(int(context.node_config["partition-id"]))
        update = local_update(Broadcast(model), mine, LOCAL)
        state = {name: p.detach() + update.tensors[name] for name, p in model.named_parameters()}
        metrics = MetricRecord({"num-examples": len(mine)})
        return Message(RecordDict({"arrays": ArrayRecord(state), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        first = float(message.content["arrays"].to_torch_state_dict()["1.weight"].abs().sum())
        metrics = MetricRecord({"num-examples": 1, "first": first})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def attack(name: str, **options: Any) -> Curious:
    return Curious(FedAvg(), attack=name, model=network, input=INPUT, local=LOCAL, options=options)


def play(
    curious: Curious, *, rounds: int = 1, build: Callable[[], nn.Module] = network
) -> tuple[ArrayRecord, Any]:
    torch.manual_seed(0)
    arrays = ArrayRecord(build().state_dict())
    with task():
        return arrays, curious.start(InProcessGrid(client(), nodes=2), arrays, num_rounds=rounds)


def test_the_trap_is_sent_and_the_honest_model_is_put_back() -> None:
    curious = attack("trap_weights")
    before, result = play(curious)
    after = result.arrays.to_torch_state_dict()
    for name, tensor in before.to_torch_state_dict().items():
        assert torch.equal(tensor, after[name]), name
    honest = float(before.to_torch_state_dict()["1.weight"].abs().sum())
    for seen in result.evaluate_metrics_clientapp.values():
        assert seen["first"] == pytest.approx(honest, rel=1e-6)
    sent = curious.exchanges[0].broadcast.model.state_dict()["1.weight"]
    assert not torch.equal(sent, before.to_torch_state_dict()["1.weight"])


def test_after_the_attack_training_goes_on_from_the_honest_model() -> None:
    """trap_weights asks once: the second round is an honest one, and the first left nothing behind."""
    _, attacked = play(attack("trap_weights"), rounds=2)
    torch.manual_seed(0)
    with task():
        grid = InProcessGrid(client(), nodes=2)
        honest = FedAvg().start(grid, ArrayRecord(network().state_dict()), num_rounds=1)
    after = attacked.arrays.to_torch_state_dict()
    for name, tensor in honest.arrays.to_torch_state_dict().items():
        assert torch.equal(tensor, after[name]), name


def test_it_reads_clients_that_an_honest_server_would_not() -> None:
    curious = attack("trap_weights")
    play(curious)
    result = curious.reconstruct()
    assert result.source is not None and result.claimed is not None and result.claimed.any()
    right = 0
    for number, exchange in enumerate(curious.exchanges):
        mine = (result.source == number) & result.claimed
        truth = DIGITS.inputs[20 * (exchange.clients[0] - 1) :][:20]
        for candidate in result.values[mine]:
            right += bool(exact_match(candidate.expand_as(truth), truth).any())
    assert right == int(result.claimed.sum())


def test_layers_that_a_client_does_not_have_cannot_be_sent() -> None:
    with pytest.raises(NotApplicable, match="load what they receive into their own model"):
        play(attack("imprint"))


def test_a_passive_attack_has_nothing_to_send() -> None:
    with pytest.raises(SpecError, match="sends no model of its own"):
        attack("analytic_extraction")


def quickstart() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


@pytest.mark.parametrize("name", ["trap_weights", "quantile_traps"])
def test_traps_say_that_the_quickstart_s_six_filters_are_too_few(name: str) -> None:
    described = InputSpec(modality=Modality.IMAGE, shape=(3, 32, 32), num_classes=10)
    curious = Curious(FedAvg(), attack=name, model=quickstart, input=described, local=LOCAL)
    with pytest.raises(NotApplicable, match="has 6 filters, but 12 feature maps are needed"):
        play(curious, build=quickstart)


def test_a_network_in_place_of_its_builder_is_refused() -> None:
    with pytest.raises(SpecError, match="give the class or function that builds one"):
        Curious(FedAvg(), attack="trap_weights", model=network(), input=INPUT)
