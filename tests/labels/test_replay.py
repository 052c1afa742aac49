"""Replays of FedAvg against the client's own training, and counts that only a replay gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from seepage.core.types import (
    Batch,
    Broadcast,
    Exchange,
    InputSpec,
    Knowledge,
    LocalTraining,
    Modality,
    Update,
    UpdateKind,
)
from seepage.labels import examples as labels_examples
from seepage.labels import infer_label_counts
from seepage.labels.replay import Stage, replay
from seepage.models.layers import output_layer, trace_linear_layers
from seepage.protocol import local_update

CLASSES = 4
SPEC = InputSpec(modality=Modality.IMAGE, shape=(1, 8, 8), num_classes=CLASSES)
TRAININGS = {
    "plain": LocalTraining(algorithm="fedavg", epochs=3, lr=0.1),
    "momentum and decay": LocalTraining(
        algorithm="fedavg", epochs=5, lr=0.05, momentum=0.9, weight_decay=0.1
    ),
    "summed": LocalTraining(algorithm="fedavg", epochs=3, lr=0.01, loss="cross_entropy_sum"),
}


def small_net(*, bias: bool = True) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Sigmoid(), nn.Linear(12, CLASSES, bias))


def sigmoid_lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.Sigmoid(), nn.Conv2d(6, 12, 5, stride=2, padding=2), nn.Sigmoid(),
        nn.Flatten(), nn.Linear(192, CLASSES),
    )  # fmt: skip


def stage_of(model: nn.Module, inputs: Tensor, labels: Tensor | None, local: LocalTraining, n: int) -> Stage:
    layer = output_layer(trace_linear_layers(model, SPEC), num_classes=CLASSES)
    loss = "cross_entropy" if local.loss == "auto" else local.loss
    return Stage(
        model=model,
        layer=layer,
        inputs=inputs,
        labels=labels,
        local=local,
        loss=loss,
        num_examples=n,
        sent={},
    )


def random_batch(n: int, seed: int) -> Batch:
    g = torch.Generator().manual_seed(seed)
    return Batch(torch.rand(n, 1, 8, 8, generator=g), torch.randint(CLASSES, (n,), generator=g))


def exchange_of(model: nn.Module, update: Update) -> Exchange:
    return Exchange(broadcast=Broadcast(model), update=update, clients=(0,))


@pytest.mark.parametrize("name", TRAININGS)
def test_a_replay_on_the_clients_own_examples_is_the_clients_training(name):
    torch.manual_seed(1)
    model, batch, local = small_net(), random_batch(9, 2), TRAININGS[name]
    shares = torch.bincount(batch.labels, minlength=CLASSES).double() / 9
    replayed = replay(stage_of(model, batch.inputs, batch.labels, local, 9), shares[None])
    truth = local_update(Broadcast(model), batch, local).tensors
    assert torch.allclose(replayed.weight.float(), truth["3.weight"], rtol=1e-3, atol=1e-6)
    assert replayed.bias is not None
    assert torch.allclose(replayed.bias.float(), truth["3.bias"], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_slopes_are_those_of_finite_differences_where_there_is_no_hidden_layer(momentum):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES)).double()
    local = LocalTraining(algorithm="fedavg", batch_size=3, epochs=2, lr=0.05, momentum=momentum)
    inputs = torch.rand(1, 1, 8, 8, dtype=torch.float64).expand(5, -1, -1, -1)
    stage = stage_of(model, inputs, None, local, 6)
    shares = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.1, 0.1, 0.2, 0.6]], dtype=torch.float64)
    slope = replay(stage, shares).slopes.sum(0)
    for row in range(2):
        for up, down in ((0, 1), (2, 3), (1, 3)):
            step = torch.zeros_like(shares)
            step[row, up], step[row, down] = 1e-5, -1e-5
            ahead, behind = replay(stage, shares + step).bias, replay(stage, shares - step).bias
            assert ahead is not None and behind is not None
            assert torch.allclose((ahead - behind) / 2, slope @ step.flatten(), rtol=1e-4, atol=1e-12)


@pytest.mark.parametrize("lr", [0.05, 0.1])
def test_many_large_full_batch_steps_are_exact_or_called_uncertain(lr, monkeypatch):
    """At 0.1 one of these six swings, so that for stand-ins three multisets end alike."""
    monkeypatch.setattr(labels_examples, "ROUNDS", 3)  # what follows the replay is another test's matter
    local = LocalTraining(algorithm="fedavg", epochs=10, lr=lr)
    certain = 0
    for trial in range(6):
        torch.manual_seed(40 + trial)
        model, batch = sigmoid_lenet(), random_batch(12, 50 + trial)
        update = local_update(Broadcast(model), batch, local)
        estimate = infer_label_counts(exchange_of(model, update), Knowledge(input=SPEC, local=local))
        exact = estimate.counts.tolist() == torch.bincount(batch.labels, minlength=CLASSES).tolist()
        assert exact or not estimate.certain
        certain += estimate.certain and estimate.method == "replay"
    assert certain == {0.05: 6, 0.1: 5}[lr]


def test_labels_sorted_by_class_with_large_steps_are_not_given_as_certain_and_wrong():
    """Whole mini-batches of one class swing the network: the counts may not be told, but that is said."""
    local = LocalTraining(algorithm="fedavg", epochs=2, batch_size=4, lr=0.05)
    for trial in range(4):
        torch.manual_seed(60 + trial)
        model, labels = sigmoid_lenet(), torch.tensor([0] * 4 + [2] * 4 + [1, 1, 1, 3])
        batch = Batch(random_batch(12, 70 + trial).inputs, labels)
        update = local_update(Broadcast(model), batch, local)
        estimate = infer_label_counts(exchange_of(model, update), Knowledge(input=SPEC, local=local))
        assert estimate.counts.tolist() == [4, 3, 4, 1] or not estimate.certain


def test_several_steps_without_a_bias_are_called_uncertain():
    local = TRAININGS["plain"]
    torch.manual_seed(5)
    model, batch = small_net(bias=False), random_batch(8, 6)
    update = local_update(Broadcast(model), batch, local)
    estimate = infer_label_counts(exchange_of(model, update), Knowledge(input=SPEC, local=local))
    assert not estimate.certain
    assert any("uncertain" in note for note in estimate.notes)


def test_one_step_is_not_replayed():
    local = LocalTraining(algorithm="fedavg", epochs=1, lr=0.05)
    torch.manual_seed(7)
    model, batch = small_net(), random_batch(8, 8)
    update = local_update(Broadcast(model), batch, local)
    assert update.kind is UpdateKind.DELTA
    estimate = infer_label_counts(exchange_of(model, update), Knowledge(input=SPEC, local=local))
    assert (estimate.method, estimate.certain) == ("bias_counts", True)
    assert estimate.counts.tolist() == torch.bincount(batch.labels, minlength=CLASSES).tolist()
