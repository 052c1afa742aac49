"""Two pictures that are nearly alike solve a closed form's equations as their mean, within rounding."""

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
from seepage.models import MODELS
from seepage.protocol import local_update

SPEC = InputSpec(modality=Modality.IMAGE, shape=(1, 16, 16), num_classes=4)


def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "recursive_inversion":
        return nn.Sequential(nn.Flatten(), nn.Linear(256, 300), nn.LeakyReLU(), nn.Linear(300, 4))
    plain = name == "april"
    model = MODELS["vit"].build(
        SPEC, patch_size=4, dim=64, norm_first_block=not plain, residual_first_block=not plain
    )
    return model.double() if plain else model


def answer(name: str, alike: int, declared: int | None) -> Reconstruction:
    """To an update of a picture and so many others two grey steps away from it."""
    model = network(name)
    one = (torch.rand(1, 1, 16, 16, generator=torch.Generator().manual_seed(3)) * 255).round() / 255
    other = one.clone()
    other[0, 0, 8, 8] += 2 / 255 if float(other[0, 0, 8, 8]) < 0.5 else -2 / 255
    batch = Batch(torch.cat([one] + alike * [other]), torch.ones(1 + alike, dtype=torch.long))
    batch = Batch(batch.inputs.to(next(model.parameters()).dtype), batch.labels)
    update = replace(local_update(Broadcast(model), batch, LocalTraining()), num_examples=declared)
    return ATTACKS[name]().run(
        [Exchange(broadcast=Broadcast(model), update=update, clients=(0,))], Knowledge(input=SPEC)
    )


@pytest.mark.parametrize("name", ["patch_embedding", "april", "recursive_inversion"])
def test_a_claim_needs_the_number_of_examples_and_says_so(name: str) -> None:
    told = answer(name, alike=0, declared=1)
    assert told.claimed == torch.tensor([True]) and told.if_declared
    for alike in (0, 1):
        untold = answer(name, alike, declared=None)
        assert untold.claimed == torch.tensor([False]) and not untold.if_declared
        assert any("is not known" in note for note in untold.notes)
    # A client that calls two examples one is believed: nothing in the update contradicts it.
    fooled = answer(name, alike=1, declared=1)
    assert fooled.if_declared == bool(fooled.claimed)
