"""Types of numbers: which one a model takes, and the wider copy of a half-precision one that a server uses.

Clients train a model in the type it comes in, and send their updates in it. A server is not bound to that:
it holds the same weights in float32, where a half-precision model's rounding does not spoil its own
reckoning and where no operation is missing. What clients sent keeps its type, for that says how far it was
rounded.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from seepage.core.errors import NotApplicable
from seepage.core.types import Batch, Crafted
from seepage.core.widened import Widened
from seepage.protocol.copies import frozen_of


def model_placement(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Device and floating dtype of the model's parameters, or of its buffers where it has none.

    >>> model_placement(nn.Linear(2, 2).double())
    (device(type='cpu'), torch.float64)
    """
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            return tensor.device, tensor.dtype
    return torch.device("cpu"), torch.get_default_dtype()


def wide(values: Tensor) -> Tensor:
    """The same values in float32 if they are in a narrower type, else as they are.

    >>> wide(torch.ones(1, dtype=torch.bfloat16)).dtype, wide(torch.ones(1, dtype=torch.int64)).dtype
    (torch.float32, torch.int64)
    """
    return values.float() if _narrow(values) else values


def wide_batch(batch: Batch) -> Batch:
    """The examples with inputs in float32 at least."""
    return replace(batch, inputs=wide(batch.inputs))


def wide_model(model: nn.Module) -> nn.Module:
    """The model itself, or a copy of it in float32 where part of it is in half precision.

    >>> exact, half = nn.Linear(2, 2), nn.Linear(2, 2).half()
    >>> wide_model(exact) is exact, wide_model(half).weight.dtype
    (True, torch.float32)
    """
    if not any(map(_narrow, (*model.parameters(), *model.buffers()))):
        return model
    if model not in _wide_models:
        held: dict[int, Any] = {key: _widened(parameter) for key, parameter in frozen_of(model).items()}
        _wide_models[model] = copy.deepcopy(model, held)._apply(wide)
    return _wide_models[model]


def _widened(parameter: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(Widened.of(parameter), requires_grad=False) if _narrow(parameter) else parameter


_wide_models: WeakKeyDictionary[nn.Module, nn.Module] = WeakKeyDictionary()
"""A server that asks round after round reads its history again and again."""


def as_sent(crafted: Crafted, like: nn.Module) -> Crafted:
    """A model that was crafted in float32, in the types of the model that clients expect.

    >>> as_sent(Crafted(nn.Linear(2, 2)), nn.Linear(2, 2).bfloat16()).model.weight.dtype
    torch.bfloat16
    """
    if wide_model(like) is like:
        return crafted
    others = None if crafted.others is None else _narrowed(crafted.others, like)
    turns = tuple(_narrowed(model, like) for model in crafted.turns)
    return replace(crafted, model=_narrowed(crafted.model, like), others=others, turns=turns)


def _narrowed(crafted: nn.Module, like: nn.Module) -> nn.Module:
    model, default = copy.deepcopy(crafted), model_placement(like)[1]
    expected = {name: t.dtype for name, t in (*like.named_parameters(), *like.named_buffers())}
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if not tensor.is_floating_point():
                continue
            # an imprint puts the whole model one level down
            dtype = expected.get(name, expected.get(name.partition(".")[2], default))
            narrow = tensor.data.to(dtype)
            if bool(tensor.isfinite().all()) and not bool(narrow.isfinite().all()):
                raise NotApplicable(
                    f"the crafted '{name}' holds values up to {float(tensor.abs().max()):.3g}, and the "
                    f"model's {str(dtype).removeprefix('torch.')} ends at {torch.finfo(dtype).max:.3g}: "
                    "choose gentler settings of the attack, or audit the model in float32."
                )
            tensor.data = narrow
    return model


def _narrow(values: Tensor) -> bool:
    return values.is_floating_point() and values.element_size() < 4
