from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from seepage.core.types import (
    Batch,
    Broadcast,
    Exchange,
    LocalTraining,
    Update,
    UpdateKind,
)
from seepage.engine.diagnosis import diagnosis
from seepage.protocol import local_update
from seepage.record.exchanges import ExchangeInfo


def network(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 30), nn.ReLU(), *layers, nn.Linear(30, 10))


def played(model: nn.Module, *, labels: tuple[int, ...] = (3, 3, 5), **training: Any) -> Exchange:
    torch.manual_seed(1)
    batch = Batch(torch.rand(len(labels), 20), torch.tensor(labels))
    update = local_update(Broadcast(model), batch, LocalTraining(**training))
    return Exchange(broadcast=Broadcast(model), update=update, clients=(0,))


def said(exchange: Exchange, kind: str = "gradient", **known: Any) -> str:
    info = ExchangeInfo(**{"kind": kind, "round": 1, "client": 0, "dtype": "float32", **known})
    return " ".join(diagnosis(exchange, info))


def with_tensors(exchange: Exchange, change: Any, kind: UpdateKind | None = None) -> Exchange:
    update = exchange.update
    tensors = {name: change(name, tensor) for name, tensor in update.tensors.items()}
    changed = Update(kind=kind or update.kind, tensors=tensors)
    return Exchange(broadcast=exchange.broadcast, update=changed, clients=(0,))


ONE_STEP = {"local": {"lr": 0.1, "steps": 1}}


def test_a_plain_gradient_and_a_plain_delta_have_nothing_against_them() -> None:
    on_trust = "That the update is a gradient was taken on trust: nothing in it contradicts that, but a"
    assert said(played(network())).startswith(on_trust)
    assert said(played(network(), algorithm="fedavg", lr=0.1), "delta", **ONE_STEP) == ""
    assert said(played(network(), algorithm="fedavg", lr=0.1), "weights", **ONE_STEP) == ""


@pytest.mark.parametrize("labels", [(3,), (3, 3, 5), (0, 1, 2), (5, 0, 4, 1, 9, 2, 1, 3), (*range(10), 0, 0)])
def test_a_delta_that_is_called_a_gradient(labels: tuple[int, ...]) -> None:
    delta = played(network(), labels=labels, algorithm="fedavg", lr=0.1)
    wrong = with_tensors(delta, lambda _, t: t, UpdateKind.GRADIENT)
    assert "looks like a delta" in said(wrong, examples=len(labels))
    assert "looks like a delta" not in said(played(network(), labels=labels), examples=len(labels))


@pytest.mark.parametrize(
    "change",
    {
        "scaled": lambda t: 0.37 * t,
        "noised": lambda t: t + 1e-4 * torch.randn_like(t),
        "averaged": lambda t: (t + 0.9 * t + 0.8 * t) / 3,
        "16 bits": lambda t: t.half().float(),
    }.items(),
    ids=lambda one: one[0],
)
def test_a_kind_that_cannot_be_told_is_said_to_be_taken_on_trust(change: tuple[str, Any]) -> None:
    delta = played(network(), labels=tuple(range(10)), algorithm="fedavg", lr=0.1)
    altered = with_tensors(delta, lambda _, t: change[1](t))
    wrong = with_tensors(altered, lambda _, t: t, UpdateKind.GRADIENT)
    assert "a gradient was taken on trust" in said(wrong, examples=10)
    assert "a delta was taken on trust" in said(altered, "delta", **ONE_STEP)


def test_a_kind_that_is_told_is_not_taken_on_trust() -> None:
    delta = played(network(), algorithm="fedavg", lr=0.1)
    wrong = with_tensors(delta, lambda _, t: t, UpdateKind.GRADIENT)
    assert "looks like a delta" in said(wrong) and "on trust" not in said(wrong)
    assert "a delta was taken on trust" in said(played(network()), "delta", **ONE_STEP)


@pytest.mark.parametrize("seed", range(20))
def test_no_gradient_is_called_a_delta(seed: int) -> None:
    """Whatever the labels are, and however the model leans."""
    torch.manual_seed(seed)
    model = network()
    model[-1].bias.data += 3 * torch.randn(10)
    labels = tuple(torch.randint(10, (int(torch.randint(1, 12, ())),)).tolist())
    assert "looks like a delta" not in said(played(model, labels=labels), examples=len(labels))


@pytest.mark.parametrize("kind", ["gradient", "delta"])
def test_weights_that_are_called_something_else(kind: str) -> None:
    model = network()
    weights = dict(model.named_parameters())
    wrong = with_tensors(played(model), lambda name, t: weights[name].detach() - 0.01 * t)
    assert "kind = weights" in said(wrong, kind, **ONE_STEP)


def test_a_change_that_is_called_new_weights() -> None:
    model = network()
    weights = dict(model.named_parameters())
    delta = played(model, algorithm="fedavg", lr=0.1)
    wrong = with_tensors(delta, lambda name, t: t - weights[name].detach())  # what reading makes of it
    assert "kind = delta or gradient" in said(wrong, "weights", **ONE_STEP)


def test_sixteen_bits() -> None:
    model = network()
    weights = dict(model.named_parameters())
    delta = played(model, algorithm="fedavg", lr=0.1)
    assert "sent in float16" in said(delta, "weights", dtype="float16", **ONE_STEP)
    cast = with_tensors(delta, lambda n, t: (weights[n].detach() + t).half().float() - weights[n].detach())
    assert "New weights were sent in float16" in said(cast, "weights", **ONE_STEP)
    rounded = with_tensors(played(model), lambda _, t: t.bfloat16().float())
    assert "sent in bfloat16" in said(rounded)


def test_several_local_steps_and_unknown_ones() -> None:
    delta = played(network(), algorithm="fedavg", batch_size=1)
    assert "several local steps" in said(delta, "delta", local={"lr": 0.1, "steps": 3})
    known = {"examples": 3, "local": {"lr": 0.1, "epochs": 1, "batch_size": 1}}
    assert "several local steps" in said(delta, "delta", **known)
    accumulated = {"examples": 3, "local": {"lr": 0.1, "epochs": 1, "batch_size": 1, "accumulation": 3}}
    assert "several local steps" not in said(delta, "delta", **accumulated)
    assert "order that the server" in said(delta, "delta", local={"lr": 0.1, "steps": 3, "shuffle": True})
    assert "not recorded" in said(delta, "delta")
    assert "train with adam" in said(delta, "delta", local={"optimizer": "adam"})


def test_zeros_and_frozen_layers() -> None:
    exchange = played(network())
    assert "all zeros" in said(with_tensors(exchange, lambda _, t: t * 0))
    part = with_tensors(exchange, lambda name, t: t * 0 if name.startswith("0.") else t)
    assert "did not change at all ('0.weight' and others)" in said(part)
    only = {n: t for n, t in exchange.update.tensors.items() if not n.startswith("0.")}
    for name, parameter in exchange.broadcast.model.named_parameters():
        parameter.requires_grad_(name in only)
    sent = Exchange(
        broadcast=exchange.broadcast, update=Update(kind=UpdateKind.GRADIENT, tensors=only), clients=(0,)
    )
    assert "lacks parameters of the model ('0.weight' and others)" in said(sent)


def test_dropout_and_batch_norm_in_train_mode() -> None:
    drops = played(network(nn.Dropout(0.5)))
    assert "has dropout" in said(drops)
    assert "has dropout" not in said(drops, local={"dropout": False})
    normed = played(network(nn.BatchNorm1d(30)), batch_norm="train", send_buffers=True)
    assert "Batch norm was in train mode" in said(normed)
    still = played(network(nn.BatchNorm1d(30)), send_buffers=True)
    assert "Batch norm" not in said(still)
    assert "Batch norm was in train mode" in said(still, local={"batch_norm": "train"})


def test_filters_that_the_update_passed() -> None:
    assert "passed PercentilePrivacy" in said(played(network()), filters=("PercentilePrivacy",))
