"""Peeling where clients normalise in a way that the server was not told."""

from __future__ import annotations

import torch
from torch import nn

from seepage.attacks import ATTACKS
from seepage.core.types import Batch, Broadcast, Exchange, InputSpec, Knowledge, LocalTraining, Modality
from seepage.protocol import local_update


def test_the_raw_value_range_does_not_rule_out_normalised_examples() -> None:
    torch.manual_seed(0)
    told = InputSpec(modality=Modality.IMAGE, shape=(1, 5, 5), num_classes=3)  # range [0, 1], no mean or std
    model = nn.Sequential(nn.Flatten(), nn.Linear(25, 200), nn.ReLU(), nn.Linear(200, 3))
    data = Batch(3 * torch.randn(4, 1, 5, 5), torch.tensor([0, 1, 2, 1]))
    sent = local_update(Broadcast(model), data, LocalTraining())
    seen = Exchange(broadcast=Broadcast(model), update=sent, clients=(0,))
    found = ATTACKS["exact_extraction"]().run([seen], Knowledge(input=told, normalised=True))
    assert found.model_units
    assert found.claimed is not None
    distance = torch.cdist(data.inputs.flatten(1), found.values[found.claimed].flatten(1), p=torch.inf)
    assert (distance.min(dim=1).values < 1e-3).all()
