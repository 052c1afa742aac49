"""One client's update of a small Hugging Face model, and an attack's answer to it."""

from __future__ import annotations

from typing import Any

import torch
from tests.models.families import built, spec
from torch import Tensor, nn

from seepage.attacks import Attack
from seepage.core.types import Batch, Broadcast, Exchange, Knowledge, LocalTraining, Reconstruction
from seepage.models.loading import build_model
from seepage.protocol import local_update

CLASSES = 3


def exchange_of(
    model: nn.Module, ids: Tensor, *, language_model: bool, **training: Any
) -> tuple[Exchange, Knowledge]:
    """model: as Hugging Face builds it; ids: the client's texts, class 0, 1, 2, 0, ..."""
    described = spec(num_classes=1 if language_model else CLASSES, length=ids.shape[1])
    own = build_model(model, described)
    local = LocalTraining(**training)
    batch = Batch(ids, torch.arange(len(ids)) % (1 if language_model else CLASSES))
    update = local_update(Broadcast(own), batch, local)
    loss = "next_token" if language_model else "cross_entropy"
    known = Knowledge(input=described, loss=loss, local=local)
    return Exchange(broadcast=Broadcast(own), update=update, clients=(0,)), known


def answer(
    attack: Attack, family: str, ids: Tensor, *, language_model: bool = False, **training: Any
) -> Reconstruction:
    """What the attack says about the texts `ids`."""
    model = built(family, "CausalLM" if language_model else "SequenceClassification")
    exchange, known = exchange_of(model, ids, language_model=language_model, **training)
    return attack.run([exchange], known)


def as_set(ids: Tensor) -> set[tuple[int, ...]]:
    return {tuple(row) for row in ids.tolist()}
