"""What crosses to the process of an attack: the tensors themselves, and nothing that lies beside them."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from seepage.core.types import (
    Batch,
    Broadcast,
    Exchange,
    InputSpec,
    Knowledge,
    Modality,
    Reconstruction,
    Update,
    UpdateKind,
)
from seepage.engine.isolation.attack import IsolatedAttack

MODEL = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
SPEC = InputSpec(modality=Modality.IMAGE, shape=(1, 2, 2), num_classes=3)


def beside(shown: Tensor, private: Tensor) -> Tensor:
    """The same values as `shown`, in one piece of memory with private ones."""
    memory = torch.cat([shown.flatten(), private.to(shown.dtype).flatten()])
    return memory[: shown.numel()].reshape(shown.shape)


def test_private_values_that_share_memory_with_public_ones_stay_here() -> None:
    """A pickled view takes along all of the memory that it looks into."""
    private = torch.tensor([0.123456, 0.654321, 0.314159])
    label = torch.tensor([77177177])
    sent: list[bytes] = []

    def ask(what: str, **content: Any) -> Any:
        sent.append(pickle.dumps(content))
        if what == "reconstruct":
            return {**vars(Reconstruction(values=torch.zeros(1, 1, 2, 2))), "notes": []}
        return {"requires": []} if what == "begin" else None

    process: Any = SimpleNamespace(running=True, ask=ask)
    attack = IsolatedAttack("analytic_extraction", {}, process=process)
    public = Batch(beside(torch.rand(2, 1, 2, 2), private), beside(torch.tensor([0, 1]), label))
    known = Knowledge(input=SPEC, auxiliary=public)
    update = Update(
        kind=UpdateKind.GRADIENT,
        tensors={name: beside(torch.rand_like(p), private) for name, p in MODEL.named_parameters()},
        buffers={"mean": beside(torch.rand(3), private)},
        num_examples=1,
    )
    exchange = Exchange(
        broadcast=Broadcast(MODEL), update=update, labels=beside(torch.tensor([2]), label), clients=(0,)
    )
    attack.check(MODEL, known)
    attack.reconstruct([exchange], known)
    everything = b"".join(sent)
    assert public.inputs.numpy().tobytes() in everything  # what may be known does arrive
    for secret in (private, label):
        assert pickle.dumps(public).find(secret[:1].numpy().tobytes()) > 0  # it would be seen
        assert all(value.numpy().tobytes() not in everything for value in secret.split(1))
