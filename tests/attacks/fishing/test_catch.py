"""What a fishing attack brought up."""

from __future__ import annotations

import torch
from torch import nn

from seepage.attacks.fishing.catch import Catch, Fished, invert_catch
from seepage.attacks.reading.analytic_extraction import analytic_extraction
from seepage.core.types import InputSpec, Knowledge, Modality


def test_a_gradient_of_fewer_than_nobody_is_not_inverted() -> None:
    model = nn.Linear(3, 2)
    caught = Fished(
        tensors={name: torch.zeros_like(p) for name, p in model.named_parameters()},
        model=model,
        label=0,
        count=-1,
        isolated=False,
        feature=torch.zeros(3),
        score=None,
        source=0,
        queries=1,
    )
    spec = InputSpec(modality=Modality.TABULAR, shape=(3,), num_classes=2)
    read = invert_catch(Catch(fished=(caught,), queries=1), analytic_extraction(), [], Knowledge(input=spec))
    assert len(read) == 0
    assert "No gradient of a single example was isolated" in read.notes[-1]
