"""Likenesses of classes, against a model whose classes are known pictures."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from seepage.attacks.representatives.class_representatives import class_representatives
from seepage.core.errors import NotApplicable, SpecError
from seepage.core.types import Batch, Broadcast, Exchange, InputSpec, Knowledge, LocalTraining, Modality
from seepage.protocol import local_update

SPEC = InputSpec(modality=Modality.IMAGE, shape=(1, 8, 8), num_classes=4)


def quarters() -> torch.Tensor:
    """(4, 1, 8, 8): class c is bright in one quarter of the picture."""
    bright = torch.zeros(4, 1, 8, 8)
    for c in range(4):
        y, x = 4 * (c // 2), 4 * (c % 2)
        bright[c, :, y : y + 4, x : x + 4] = 1.0
    return bright


def learnt() -> nn.Sequential:
    """Tells the quarters apart, by how bright they are."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    with torch.no_grad():
        model[1].weight.copy_(quarters().flatten(1) - 0.25)
        model[1].bias.zero_()
    return model


def pictures(labels: list[int], *, seed: int = 0) -> Batch:
    wanted = torch.tensor(labels)
    noise = torch.rand(len(labels), 1, 8, 8, generator=torch.Generator().manual_seed(seed))
    return Batch(0.7 * quarters()[wanted] + 0.3 * noise, wanted)


def seen(*clients: list[int]) -> tuple[list[Exchange], Knowledge]:
    local = LocalTraining(algorithm="fedavg", lr=0.05, epochs=2)
    exchanges = [
        Exchange(
            broadcast=Broadcast(model := learnt()),
            update=local_update(Broadcast(model), pictures(labels, seed=number), local),
            clients=(number,),
        )
        for number, labels in enumerate(clients)
    ]
    return exchanges, Knowledge(input=SPEC, local=local, auxiliary=pictures([0, 1, 2, 3] * 8, seed=9))


def brightest(values: torch.Tensor) -> list[int]:
    """The quarter of each picture that is brighter than the rest."""
    return [int(c) for c in torch.einsum("kchw,qchw->kq", values, quarters()).argmax(dim=1)]


def test_the_model_alone_shows_what_it_takes_for_a_class() -> None:
    exchanges, known = seen([0, 1, 1], [2, 3])
    found = class_representatives(method="hitaj").run(exchanges, replace(known, auxiliary=None))
    assert brightest(found.values) == [0, 1, 2, 3]
    assert found.shared and found.claimed is None and "no examples" in found.notes[0]


def test_each_client_s_classes_are_shown_for_that_client() -> None:
    exchanges, known = seen([0, 1, 1], [2, 2, 2])
    found = class_representatives(steps=150).run(exchanges, known)
    assert found.source is not None and found.source.tolist() == [0, 0, 0, 1, 1, 1]
    assert brightest(found.values) == [0, 1, 1, 2, 2, 2]
    assert found.claimed is None
    low, high = found.values.amin(), found.values.amax()
    assert float(low) >= 0 and float(high) <= 1


def test_a_budget_ends_the_training() -> None:
    exchanges, known = seen([0, 1])
    found = class_representatives(steps=100_000, budget=0.2).run(exchanges, known)
    assert len(found) == 2


def test_what_it_cannot_do_is_said() -> None:
    _, known = seen([0])
    torch.manual_seed(0)
    with pytest.raises(NotApplicable, match="hardly more than guessing"):
        class_representatives().check(nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), known)
    with pytest.raises(NotApplicable, match="auxiliary_data"):
        class_representatives().check(learnt(), replace(known, auxiliary=None))
    with pytest.raises(NotApplicable, match="makes pictures"):
        table = InputSpec(modality=Modality.TABULAR, shape=(64,), num_classes=4)
        class_representatives().check(learnt(), replace(known, input=table))
    with pytest.raises(SpecError, match="method"):
        class_representatives(method="gan")
    with pytest.raises(SpecError, match="steps"):
        class_representatives(steps=0)
