"""Traits of private examples, against sums written out."""

from __future__ import annotations

import torch
from torch import nn

from seepage.core.types import Batch, InputSpec, Modality
from seepage.engine.traits import example_traits

SPEC = InputSpec(modality=Modality.TABULAR, shape=(2,), num_classes=3)


def test_loss_and_distance() -> None:
    torch.manual_seed(0)
    model = nn.Linear(2, 3)
    truth = Batch(torch.tensor([[1.0, 1.0], [0.0, 4.0]]), torch.tensor([0, 2]))
    public = Batch(torch.tensor([[0.0, 0.0], [0.0, 2.0], [6.0, 4.0]]), torch.tensor([0, 0, 1]))
    traits = example_traits(truth, public, model, SPEC)
    probabilities = model(truth.inputs).softmax(dim=1)
    expected = -torch.stack([probabilities[0, 0], probabilities[1, 2]]).log()
    assert torch.allclose(traits["loss"], expected)
    # class 0: mean (0, 1), so (1, 0) away; class 2 has no public example: overall mean (2, 2), so (-2, 2)
    assert torch.allclose(traits["distance"], torch.tensor([0.5**0.5, 2.0]))


def test_without_public_examples_only_the_loss() -> None:
    truth = Batch(torch.rand(2, 2), torch.tensor([0, 1]))
    assert set(example_traits(truth, None, nn.Linear(2, 1), SPEC)) == {"loss"}
