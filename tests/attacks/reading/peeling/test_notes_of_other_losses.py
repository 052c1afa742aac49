"""What is said where nothing is read: the reason must be one that holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from seepage.attacks import ATTACKS
from seepage.core.types import (
    Batch,
    Broadcast,
    Exchange,
    InputSpec,
    Knowledge,
    LocalTraining,
    Modality,
    Reconstruction,
)
from seepage.protocol import local_update

IMAGE = InputSpec(modality=Modality.IMAGE, shape=(1, 6, 6), num_classes=4)


def read(activation: nn.Module, smoothing: float = 0.0, *, spread: float = 1.0) -> Reconstruction:
    torch.manual_seed(0)
    layers = [nn.Linear(36, 60), activation, nn.Linear(60, 60), activation, nn.Linear(60, 4)]
    model = nn.Sequential(nn.Flatten(), *layers)
    with torch.no_grad():
        model[1].weight.mul_(spread)
    batch = Batch((torch.rand(6, 1, 6, 6) * 255).round() / 255, torch.arange(6) % 4)
    sent = local_update(Broadcast(model), batch, LocalTraining())
    if smoothing:
        loss = nn.functional.cross_entropy(model(batch.inputs), batch.labels, label_smoothing=smoothing)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        sent = replace(sent, tensors=dict(zip(sent.tensors, gradients, strict=True)))
    seen = Exchange(broadcast=Broadcast(model), update=sent, clients=(0,))
    return ATTACKS["exact_extraction"]().run([seen], Knowledge(input=IMAGE, local=LocalTraining()))


def test_a_loss_that_was_not_told_is_named_among_the_reasons() -> None:
    assert read(nn.SELU()).complete
    found = read(nn.SELU(), smoothing=0.1)
    assert not bool(found.claimed.any())
    assert any("label smoothing" in note and "was taken apart" in note for note in found.notes)


def test_an_activation_that_is_linear_at_all_examples_is_named() -> None:
    """Hardtanh within -1 and 1 is the identity: whatever the layers hold holds of combinations, too."""
    found = read(nn.Hardtanh())
    assert len(found) == 0 or not bool(found.claimed.any())
    assert any("linear at all of them" in note for note in found.notes)


@pytest.mark.parametrize("spread", [1.0, 30.0], ids=["linear part", "bends"])
def test_an_activation_without_a_second_derivative_breaks_nothing_off(spread: float) -> None:
    """torch has none of nn.Hardsigmoid. Where it bends, the batch is read by the next layer."""
    found = read(nn.Hardsigmoid(), spread=spread)
    assert found.claimed is not None
    if spread > 1:
        assert found.complete and len(found) == 6
    else:
        assert not bool(found.claimed.any()) and any("second derivatives" in note for note in found.notes)
