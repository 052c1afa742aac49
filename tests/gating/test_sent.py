"""What the gate cannot measure never passes: other batches, new weights, limits that are no numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from seepage.core.errors import DataError, SpecError
from seepage.gating import gate


def model_and_batch(seed=0):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 64), nn.ReLU(), nn.Linear(64, 4))
    return net, ((torch.rand(5, 1, 6, 6) * 255).round() / 255, torch.randint(4, (5,)))


def gradient(net, inputs, labels):
    loss = nn.functional.cross_entropy(net(inputs), labels)
    names = [name for name, _ in net.named_parameters()]
    return dict(zip(names, torch.autograd.grad(loss, list(net.parameters())), strict=True))


@pytest.mark.parametrize(
    "limits", [{"threshold": float("nan")}, {"threshold": -0.1}, {"threshold": 2}, {"budget": 0}]
)
def test_limits_that_are_none_are_refused(limits):
    net, batch = model_and_batch()
    with pytest.raises(SpecError):
        gate(net, gradient(net, *batch), batch, **limits)


def test_an_update_of_another_batch_is_not_measured():
    """It holds five pictures, and none of them is in the batch that it is compared with."""
    net, (inputs, labels) = model_and_batch()
    other = (torch.rand(5, 1, 6, 6) * 255).round() / 255
    report = gate(net, gradient(net, other, labels), (inputs, labels), budget=0.2)
    assert report.answer == "not measured"
    assert any("not in the batch" in why for why in report.not_run.values())
    assert gate(net, gradient(net, inputs, labels), (inputs, labels), budget=0.2).answer == "block"


def test_new_weights_are_not_taken_for_a_difference():
    net, batch = model_and_batch()
    slopes = gradient(net, *batch)
    new = {name: p.detach() - 0.1 * slopes[name] for name, p in net.named_parameters()}
    with pytest.raises(DataError, match="new weights"):
        gate(net, new, batch)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda u, b: ({"x": torch.zeros(3)}, b), "none of the model's parameters"),
        (lambda u, b: ({name: torch.zeros(3) for name in u}, b), "must belong together"),
        (lambda u, b: (u, (b[0], ["a"] * 5)), "two tensors"),
        (lambda u, b: (u, (b[0], b[1][:-1])), "5 inputs but 4 labels"),
        (lambda u, b: (u, b[0]), "two tensors"),
    ],
)
def test_what_does_not_belong_together_is_one_sentence(change, said):
    net, batch = model_and_batch()
    update, changed = change(gradient(net, *batch), batch)
    with pytest.raises(DataError, match=said):
        gate(net, update, changed)
