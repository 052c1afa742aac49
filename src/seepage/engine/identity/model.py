"""A model as it is and as it behaves, in digests that are the same in the next process."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seepage.core.checkpoint import sketch
from seepage.core.types import InputSpec, Modality
from seepage.core.user_code import USER_CODE_ERRORS
from seepage.engine.identity.functions import MAIN
from seepage.engine.identity.hashing import digest, is_plain
from seepage.protocol import training_mode

_EXAMPLES = 4
_TORCH_S = frozenset(vars(nn.Module()))
_NOT_REPEATABLE = "two runs on the same inputs differ"


def state(model: nn.Module) -> str:
    """Structure, weights and buffers, and for each whether it is trained, its type and its mode.

    >>> one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    >>> other.load_state_dict(one.state_dict()), state(one) == state(other)
    (<All keys matched successfully>, True)
    >>> state(one) == state(other.requires_grad_(False))
    False
    """
    modules = [
        (name, _kind(module), module.training, _settings(module)) for name, module in model.named_modules()
    ]
    first: dict[int, str] = {}
    parameters = [
        (name, first.setdefault(id(p), name), p.requires_grad, p)  # the first name: shared weights
        for name, p in model.named_parameters(remove_duplicate=False)
    ]
    extra = {name: value for name, value in model.state_dict().items() if not isinstance(value, Tensor)}
    return digest(modules, parameters, dict(model.named_buffers(remove_duplicate=False)), extra)


def _kind(module: nn.Module) -> str:
    kind = type(module)
    home = "__main__" if kind.__module__ in MAIN else kind.__module__
    return f"{home}.{kind.__qualname__}"


def _settings(module: nn.Module) -> dict[str, Any]:
    """Plain attributes: strides, slopes, a user's own switches.

    Not torch's own tables: those of hooks are numbered by how many hooks this process has ever made.
    """
    return {name: value for name, value in vars(module).items() if name not in _TORCH_S and is_plain(value)}


def behaviour(model: nn.Module, spec: InputSpec) -> tuple[str, ...]:
    """What comes out for fixed inputs, in evaluation mode, and what gradients flow where, as words.

    Code that cannot be read shows here: a compiled extension, a replaced method, a file read by the model.
    The figures keep three digits, for another machine rounds differently. What a model says that cannot be
    run like this, or that answers differently each time, is that.

    >>> spec = InputSpec(modality=Modality.TABULAR, shape=(3,), num_classes=2)
    >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> smooth = nn.Sequential(net[0], nn.Sigmoid(), net[2])
    >>> behaviour(net, spec) == behaviour(net, spec), behaviour(net, spec) == behaviour(smooth, spec)
    (True, False)
    """
    try:
        with training_mode(model, False), _settled():
            found = _probe(model, spec)
        with training_mode(model, False), _settled():
            again = _probe(model, spec)
    except USER_CODE_ERRORS as error:
        return (f"cannot be run: {type(error).__name__}",)
    return found if found == again else (_NOT_REPEATABLE,)


def _probe(model: nn.Module, spec: InputSpec) -> tuple[str, ...]:
    inputs = _inputs(model, spec)
    with torch.enable_grad():
        outputs = list(_tensors(model(inputs)))
        goal = torch.stack([_weighted(output) for output in outputs]).sum()
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        gradients = (
            torch.autograd.grad(goal, list(trained.values()), allow_unused=True)
            if goal.requires_grad
            else [None] * len(trained)
        )
    flows = "".join(
        "-" if gradient is None else "0" if not bool(gradient.any()) else "+" for gradient in gradients
    )
    there = [gradient.flatten().double() for gradient in gradients if gradient is not None]
    numbers = [*sketch(outputs), *(sketch([torch.cat(there)]) if there else ())]
    return (flows, *(f"{float(number):.2e}" for number in numbers))


def _tensors(output: Any) -> Iterator[Tensor]:
    """The floating-point tensors of whatever a model returns."""
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, dict):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from _tensors(value)


def _weighted(output: Tensor) -> Tensor:
    """A sum with different weights: a softmax's plain sum has no gradient."""
    weights = torch.linspace(-1, 1, output.numel() or 1, dtype=output.dtype, device=output.device)
    return (output.flatten() * weights[: output.numel()]).sum()


def _inputs(model: nn.Module, spec: InputSpec) -> Tensor:
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    generator = torch.Generator().manual_seed(0)
    if spec.modality is Modality.TEXT:
        return torch.randint(spec.vocabulary or 2, (_EXAMPLES, *spec.shape), generator=generator).to(
            like.device
        )
    low, high = spec.value_range or (0.0, 1.0)
    raw = low + (high - low) * torch.rand(_EXAMPLES, *spec.shape, generator=generator)
    return spec.to_model(raw).to(like)


@contextmanager
def _settled() -> Iterator[None]:
    """One thread and fixed random states, all put back: a random forward pass is the same each time."""
    threads, python, numpy = torch.get_num_threads(), random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        try:
            torch.set_num_threads(1)
            torch.manual_seed(0)
            random.seed(0)
            np.random.seed(0)
            yield
        finally:
            torch.set_num_threads(threads)
            random.setstate(python)
            np.random.set_state(numpy)
