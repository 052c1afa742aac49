"""A model whose update says nothing, whoever trains it (Pasquini et al. 2022, gradient suppression).

The features that reach the classification layer are made 0 for every input, and so are that layer's weights
W. Then dL/dW = (p - y) f^T = 0 and dL/df = W^T (p - y) = 0: no weight moves, in no number of local steps, but
for the last bias, which nothing can stop (p - y is never 0).
"""

from __future__ import annotations

import copy

import torch
from torch import nn

from seepage.attacks.fishing.head import Head
from seepage.core.errors import NotApplicable
from seepage.core.types import Batch, Broadcast, Knowledge, LocalTraining
from seepage.models.hooks import hooked
from seepage.models.probes import dummy_inputs, run_model
from seepage.protocol import local_update, training_mode

_PROBES = 8
"""Made-up inputs. Cost: one pass forward for all of them."""
_FLOOR = -1e4
"""A bias that no activation makes up for. Derived: within the range of float16. Rehearsed on made-up
inputs."""


def dead_model(model: nn.Module, head: Head, known: Knowledge) -> nn.Module:
    """The model with its features dead; NotApplicable where none of two ways makes them so.

    >>> from seepage.attacks.fishing.head import find_head
    >>> from seepage.core.types import InputSpec
    >>> spec = InputSpec(modality="tabular", shape=(4,), num_classes=3)
    >>> net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    >>> dead = dead_model(net, find_head(net, spec), Knowledge(input=spec))
    >>> dead[2].weight.abs().max().item()
    0.0
    """
    layer = _last_with_bias(model, head, known)
    for bias in (0.0, _FLOOR):
        dead = copy.deepcopy(model)
        part = dead.get_submodule(layer)
        with torch.no_grad():
            part.get_parameter("weight").zero_()
            part.get_parameter("bias").fill_(bias)
            for parameter in dead.get_submodule(head.name).parameters():
                parameter.zero_()
        if _says_nothing(dead, head, known):
            return dead
    raise NotApplicable(
        "no model could be made whose update is zero (weight decay moves every weight, and a sum with other "
        "clients' updates then hides the victim's; or features do not go through an activation): use fakes, "
        "or attack the sum."
    )


def _last_with_bias(model: nn.Module, head: Head, known: Knowledge) -> str:
    """The last module before the classification layer that has weights and a bias of its own."""
    order: list[str] = []
    parts = {
        name: part
        for name, part in model.named_modules()
        if isinstance(getattr(part, "weight", None), nn.Parameter)
        and isinstance(getattr(part, "bias", None), nn.Parameter)
    }

    def remember(name: str, *_: object) -> None:
        order.append(name)

    watched = {**parts, head.name: model.get_submodule(head.name)}
    with torch.no_grad(), training_mode(model, False), hooked(watched, before=remember):
        run_model(model, dummy_inputs(known.input, 2, like=model))
    before = order[: order.index(head.name)]
    if not before:
        raise NotApplicable(
            f"nothing with a bias stands before the classification layer '{head.name}', so features cannot "
            "be made dead: use fakes, or attack the sum."
        )
    return before[-1]


def _says_nothing(dead: nn.Module, head: Head, known: Knowledge) -> bool:
    """The server plays a client of its own."""
    inputs = dummy_inputs(known.input, _PROBES, like=dead, seed=known.seed, model_units=known.normalised)
    labels = torch.arange(_PROBES, device=inputs.device) % head.classes
    local = known.local or LocalTraining(loss=known.loss)
    sent = local_update(Broadcast(dead), Batch(inputs, labels), local).tensors
    return not any(bool(tensor.any()) for name, tensor in sent.items() if name != head.bias)
