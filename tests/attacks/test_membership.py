"""Membership tests against closed forms and batches whose members are known."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.attacks.fishing.play import SPEC, dense_net, images, known_to
from torch import nn

from seepage.attacks import membership as module
from seepage.attacks.membership import membership
from seepage.core.errors import DataError, NotApplicable
from seepage.core.types import Batch, Broadcast, Exchange, LocalTraining
from seepage.metrics.membership import roc
from seepage.protocol import local_update


def seen(model: nn.Module, batch: Batch, local: LocalTraining | None = None) -> Exchange:
    local = local or LocalTraining()
    return Exchange(
        broadcast=Broadcast(model), update=local_update(Broadcast(model), batch, local), clients=(0,)
    )


def test_a_lone_example_has_a_dot_and_a_cosine_of_one() -> None:
    batch = images(1, labels=None)
    for local in (LocalTraining(), LocalTraining(algorithm="fedavg", lr=0.01)):
        found = membership(seen(dense_net(), batch, local), known_to(local=local), batch)
        assert found.dot.item() == pytest.approx(1.0, rel=1e-3)
        assert found.cosine.item() == pytest.approx(1.0, rel=1e-3)


def test_the_dot_is_the_sum_of_what_gradients_have_in_common() -> None:
    model, batch = dense_net(), images(5, labels=None)
    found = membership(seen(model, batch), known_to(), batch)
    each = []
    for i in range(5):
        one = local_update(Broadcast(model), batch.select(slice(i, i + 1)), LocalTraining()).tensors
        each.append(torch.cat([t.flatten().double() for t in one.values()]))
    rows = torch.stack(each)
    expected = (rows @ rows.T).sum(dim=1) / rows.square().sum(dim=1)
    assert torch.allclose(found.dot, expected, rtol=1e-4)


@pytest.mark.parametrize("local", [LocalTraining(), LocalTraining(algorithm="fedavg", lr=0.05)])
def test_the_span_tells_members_from_others_without_a_mistake(local: LocalTraining) -> None:
    asked = images(60, labels=None, seed=3)
    found = membership(seen(dense_net(), asked.select(slice(30)), local), known_to(local=local), asked)
    assert found.span is not None and found.layer == "1"
    judged = roc(found.span[:30], found.span[30:])
    assert judged.area == 1.0 and judged.found_at(0.0) == 1.0
    assert roc(found.dot[:30], found.dot[30:]).area > 0.6


def test_where_the_batch_fills_the_layer_the_span_says_nothing() -> None:
    asked = images(200, labels=None, seed=4)
    found = membership(seen(dense_net(), asked), known_to(), asked.select(slice(4)))
    assert found.span is None and found.layer is None and len(found.dot) == 4


def test_the_span_lies_on_a_plateau(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = images(40, labels=None, seed=5)
    exchange = seen(dense_net(), asked.select(slice(20)))
    for rank in (1e-6, 1e-4):
        monkeypatch.setattr(module, "_RANK", rank)
        found = membership(exchange, known_to(), asked)
        assert found.span is not None and roc(found.span[:20], found.span[20:]).area == 1.0


def test_the_filter_is_the_explicit_inverse() -> None:
    """C^-1 written out, on a network small enough for it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    asked, public = images(60, labels=None, seed=6), images(50, labels=None, seed=7)
    exchange, known = seen(model, asked.select(slice(30))), known_to(auxiliary=public)
    found = membership(exchange, known, asked).matched
    rows = module._gradients(exchange, known, public)
    whole = torch.cat([t.flatten().double() for t in exchange.update.tensors.values()])
    own, middle = module._gradients(exchange, known, asked), rows.mean(dim=0)
    covariance = (rows - middle).T @ (rows - middle)
    covariance += module._NOISE * covariance.trace() * torch.eye(len(covariance), dtype=torch.float64)
    inverse, x = torch.linalg.inv(covariance), own - middle
    expected = (x @ inverse @ (30 * (whole - middle))) / (x @ inverse * x).sum(dim=1)
    assert found is not None and torch.allclose(found, expected, rtol=1e-6)
    assert membership(exchange, known_to(), asked).matched is None


@pytest.mark.parametrize("noise", [1e-4, 1e-3, 3e-3])
def test_the_filter_lies_on_a_plateau(monkeypatch: pytest.MonkeyPatch, noise: float) -> None:
    monkeypatch.setattr(module, "_NOISE", noise)
    asked, public = images(60, labels=None, seed=8), images(200, labels=None, seed=9)
    exchange = seen(dense_net(), asked.select(slice(30)))
    found = membership(exchange, known_to(auxiliary=public), asked)
    assert found.matched is not None
    area = roc(found.matched[:30], found.matched[30:]).area
    assert area > 0.8 and area > roc(found.dot[:30], found.dot[30:]).area


def test_nothing_but_the_update_is_used_and_bad_questions_are_refused() -> None:
    asked = images(6, labels=None)
    exchange = seen(dense_net(), asked.select(slice(3)))
    turned = membership(exchange, known_to(), asked.select(torch.arange(5, -1, -1)))
    assert torch.allclose(turned.dot.flip(0), membership(exchange, known_to(), asked).dot)
    with pytest.raises(DataError, match="no example to ask about"):
        membership(exchange, known_to(), asked.select(slice(0)))
    unsaid = dataclasses.replace(exchange, update=dataclasses.replace(exchange.update, num_examples=None))
    with pytest.raises(NotApplicable, match="batch_size"):
        membership(unsaid, known_to(), asked)
    assert SPEC.num_classes == 10
