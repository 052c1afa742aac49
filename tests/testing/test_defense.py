"""What `check_defense` lets through, and the sentence for each thing that it does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from seepage.core.types import Batch, Broadcast, Defense, LocalStep, Update, UpdateKind
from seepage.defenses import DEFENSES, DefenseEntry
from seepage.testing import CheckFailed, check_defense


@pytest.mark.parametrize("name", [n for n, e in DEFENSES.items() if isinstance(e, DefenseEntry)])
def test_defenses_of_seepage_pass(name: str) -> None:
    check_defense(name)


def changed(change: Callable[[str, Tensor], Tensor]) -> Defense:
    def defense(broadcast: Broadcast, batch: Batch, next_step: LocalStep) -> Update:
        sent = next_step(broadcast, batch)
        return replace(sent, tensors={name: change(name, t) for name, t in sent.tensors.items()})

    return defense


def drops(broadcast: Broadcast, batch: Batch, next_step: LocalStep) -> Update:
    sent = next_step(broadcast, batch)
    return replace(sent, tensors=dict(list(sent.tensors.items())[1:]))


def trains(broadcast: Broadcast, batch: Batch, next_step: LocalStep) -> Update:
    with torch.no_grad():
        next(broadcast.model.parameters()).add_(1.0)
    return next_step(broadcast, batch)


def overwrites(broadcast: Broadcast, batch: Batch, next_step: LocalStep) -> Update:
    batch.inputs.mul_(0.5)
    return next_step(broadcast, batch)


def renames(broadcast: Broadcast, batch: Batch, next_step: LocalStep) -> Update:
    sent = next_step(broadcast, batch)
    other = UpdateKind.GRADIENT if sent.kind is not UpdateKind.GRADIENT else UpdateKind.DELTA
    return replace(sent, kind=other)


def untyped(*, norm=1.0):  # type: ignore[no-untyped-def]
    return changed(lambda _, t: t * norm)


SEEDS = iter(range(1000))
BAD: list[tuple[Any, str]] = [
    (drops, "sends other names than the model's .*: send zeros for what is held back"),
    (changed(lambda _, t: t.double()), "keep shape and type"),
    (changed(lambda _, t: t.flatten()), "keep shape and type"),
    (changed(lambda _, t: t / 0), "NaN or infinite values in .*: guard divisions by 0"),
    (
        changed(lambda _, t: torch.rand(t.shape, generator=torch.Generator().manual_seed(next(SEEDS)))),
        "another update under the same seed: take a keyword `seed`",
    ),
    (trains, "changes the received model: work on a copy"),
    (overwrites, "changes the client's batch in place"),
    (renames, "sends a .* where the update is a .*: keep it"),
    (changed(lambda _, t: t.clone().requires_grad_()), "with its graph"),
    (lambda broadcast, batch, next_step: None, "returns a NoneType: return an Update"),
    (lambda broadcast, batch, next_step: 1 / 0, "raised ZeroDivisionError"),
    (lambda: 3, "builds a int: return a function of a broadcast"),
    (untyped, "the setting 'norm' of the defense has no type"),
    ("median", "changes the protocol"),
    ("clippin", "did you mean 'clipping'"),
    (7, "is a int: name a function"),
]


@pytest.mark.parametrize(("defense", "said"), BAD, ids=[said[:30] for _, said in BAD])
def test_what_is_wrong_is_one_sentence(defense: Any, said: str) -> None:
    with pytest.raises(CheckFailed, match=said) as failure:
        check_defense(defense)
    assert "\n" not in str(failure.value)
