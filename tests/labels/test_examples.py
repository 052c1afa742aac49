"""Counts from fitted examples, against the client's own examples and against all count vectors."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from seepage.core.types import Batch, Broadcast, Exchange, InputSpec, Knowledge, LocalTraining, Modality
from seepage.labels import infer_label_counts
from seepage.labels.evidence import example_stage, gather_evidence
from seepage.labels.examples import fit_examples, pose_scene
from seepage.labels.fit import unexplained
from seepage.labels.replay import replay
from seepage.protocol import local_update

CLASSES = 3
SPEC = InputSpec(modality=Modality.IMAGE, shape=(1, 8, 8), num_classes=CLASSES)
TRAININGS = {
    "plain": LocalTraining(algorithm="fedavg", epochs=6, lr=0.1),
    "momentum": LocalTraining(algorithm="fedavg", epochs=4, lr=0.05, momentum=0.9),
    "decay": LocalTraining(algorithm="fedavg", epochs=4, lr=0.05, weight_decay=0.1),
    "summed": LocalTraining(algorithm="fedavg", epochs=4, lr=0.01, loss="cross_entropy_sum"),
}


class ShapeKeeper(nn.Module):
    """Asks for images, so that its examples cannot be searched in the span of what its first layer learnt."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x.reshape(-1, 1, 8, 8))
        return out


def dense() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, CLASSES))


def class_like(n: int, seed: int) -> Batch:
    """Examples of a class have much in common: what stand-ins that bear all classes cannot have."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (n,), generator=g)
    centres = torch.rand(CLASSES, 1, 8, 8, generator=g)
    return Batch((centres[labels] + 0.2 * torch.randn(n, 1, 8, 8, generator=g)).clamp(0, 1), labels)


def counted(labels: Tensor) -> Tensor:
    return torch.bincount(labels, minlength=CLASSES)


def exchanged(model: nn.Module, batch: Batch, local: LocalTraining) -> tuple[Exchange, Knowledge]:
    update = local_update(Broadcast(model), batch, local)
    loss = "cross_entropy" if local.loss == "auto" else local.loss
    known = Knowledge(input=SPEC, local=local, loss=loss)
    return Exchange(broadcast=Broadcast(model), update=update, clients=(0,)), known


@pytest.mark.parametrize("keeper", [False, True])
@pytest.mark.parametrize("name", TRAININGS)
def test_the_clients_own_examples_explain_the_delta(name, keeper):
    """At the truth, which no attack has: momentum, decay, reduction and the span of the inputs are right."""
    torch.manual_seed(1)
    model = ShapeKeeper(dense()) if keeper else dense()
    batch, local = class_like(10, 2), TRAININGS[name]
    exchange, known = exchanged(model, batch, local)
    stage = example_stage(exchange, known)
    assert stage is not None
    scene = pose_scene(stage, gather_evidence(exchange, known))
    assert scene is not None
    assert (scene.basis is None) == (keeper or local.weight_decay > 0)
    targets = nn.functional.one_hot(batch.labels, CLASSES).float() * (1 if name == "summed" else 1 / 10)
    assert scene.mismatch(scene.coordinates(batch.inputs), targets) < 1e-4
    assert scene.mismatch(scene.coordinates(stage.inputs), targets) > 0.1


def test_wrong_counts_are_corrected_from_noise():
    torch.manual_seed(3)
    model, batch = dense(), class_like(12, 4)
    exchange, known = exchanged(model, batch, TRAININGS["plain"])
    stage, truth = example_stage(exchange, known), counted(batch.labels)
    assert stage is not None
    evidence, wrong = gather_evidence(exchange, known), truth + torch.tensor([1, -2, 1])
    scene = pose_scene(stage, evidence)
    assert scene is not None
    fits = fit_examples(scene, evidence, wrong)
    assert torch.equal(fits[-1].counts.round().long(), truth)


def test_brute_force_over_all_count_vectors_agrees():
    """Equal inputs make the delta a function of the counts alone: all are tabulated."""
    local = LocalTraining(algorithm="fedavg", epochs=5, lr=0.2)
    torch.manual_seed(5)
    model, picture = dense(), torch.rand(1, 1, 8, 8)
    vectors = [v for v in product(range(4), repeat=CLASSES) if sum(v) == 3]
    batches = {
        v: Batch(picture.expand(3, -1, -1, -1), torch.arange(CLASSES).repeat_interleave(torch.tensor(v)))
        for v in vectors
    }
    ends = {v: local_update(Broadcast(model), b, local).tensors["3.bias"] for v, b in batches.items()}
    for vector, batch in batches.items():
        exchange, known = exchanged(model, batch, local)
        sent = exchange.update.tensors["3.bias"]
        nearest = min(vectors, key=lambda v: float((ends[v] - sent).norm()))
        estimate = infer_label_counts(exchange, known)
        assert tuple(estimate.counts.tolist()) == nearest == vector
        assert estimate.certain


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_force_ends_a_replay_where_the_client_ended(momentum):
    """Closed form for steps so small that gradients stay as they are: delta = -length (gradient + force)."""
    local = LocalTraining(algorithm="fedavg", epochs=5, lr=1e-4, momentum=momentum)
    torch.manual_seed(6)
    model, batch = dense().double(), class_like(8, 7)
    batch = Batch(batch.inputs.double(), batch.labels)
    exchange, known = exchanged(model, batch, local)
    stage = example_stage(exchange, known)
    assert stage is not None
    shares = counted(batch.labels).double()[None] / 8
    free = replay(stage, shares)
    force = unexplained(stage, free)
    assert "3.bias" not in force
    forced = replay(replace(stage, force=force), shares)
    sent = exchange.update.tensors["1.weight"]
    assert (free.moved["1.weight"] - sent).norm() > 0.1 * sent.norm()
    assert torch.allclose(forced.moved["1.weight"], sent, atol=1e-3 * float(sent.abs().max()))


def test_mini_batches_are_not_fitted_as_one():
    local = LocalTraining(algorithm="fedavg", epochs=2, batch_size=4, lr=0.05)
    torch.manual_seed(8)
    model, batch = dense(), class_like(8, 9)
    exchange, known = exchanged(model, batch, local)
    stage = example_stage(exchange, known)
    assert stage is not None
    assert pose_scene(stage, gather_evidence(exchange, known)) is None


def test_examples_with_more_values_than_the_update_are_not_fitted():
    """Some of them would agree with any counts."""
    torch.manual_seed(10)
    model = nn.Sequential(nn.Flatten(), nn.Tanh(), nn.Linear(math.prod(SPEC.shape), CLASSES))
    batch = class_like(12, 11)
    exchange, known = exchanged(model, batch, TRAININGS["plain"])
    stage, evidence = example_stage(exchange, known), gather_evidence(exchange, known)
    assert stage is not None
    scene = pose_scene(stage, evidence)
    assert scene is not None and batch.inputs.numel() > sum(t.numel() for t in scene.sent)
    assert fit_examples(scene, evidence, counted(batch.labels)) == []
