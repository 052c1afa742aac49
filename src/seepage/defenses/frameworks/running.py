"""What both frameworks need: updates as numpy arrays and back, their randomness seeded, their logs quiet."""

from __future__ import annotations

import copy
import inspect
import logging
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from seepage.core.errors import ModelError, NotApplicable, SeepageError, SpecError, in_words
from seepage.core.types import Broadcast, Defense, LocalTraining, Update, UpdateKind
from seepage.protocol.local import trainable

Arrays = dict[str, NDArray[Any]]


def with_settings(
    build: Callable[..., Defense], parameters: Mapping[str, inspect.Parameter]
) -> Callable[..., Defense]:
    """`build` as if it had been written with these settings, by keyword, beside its own."""
    own = [p for p in inspect.signature(build).parameters.values() if p.kind is p.KEYWORD_ONLY]
    given = [p.replace(kind=p.KEYWORD_ONLY, annotation=Any) for p in parameters.values()]
    required = [p.name for p in given if p.default is p.empty]

    def checked(**options: Any) -> Defense:
        if missing := [name for name in required if name not in options]:
            raise ValueError(f"it has no default for {' and '.join(missing)}")
        return build(**options)

    checked.__signature__ = inspect.Signature([*given, *own])  # type: ignore[attr-defined]
    return checked


def constructor_settings(thing: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """What a class, or a function that builds something, is given by name."""
    parameters = inspect.signature(thing).parameters
    return {name: p for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def check_protocol(name: str, training: LocalTraining) -> None:
    """Neither framework sends gradients."""
    if training.algorithm == "fedsgd":
        raise SpecError(
            f"defense '{name}' filters the change of the weights, but under algorithm = 'fedsgd' clients "
            "send a gradient: set algorithm = 'fedavg' (one local step with local_steps = 1) in [protocol]."
        )


def received_tensors(model: nn.Module, *, buffers: bool) -> dict[str, Tensor]:
    """What a client was sent of what it sends back."""
    found: dict[str, Tensor] = {name: p.detach() for name, p in trainable(model).items()}
    return {**found, **(dict(model.named_buffers()) if buffers else {})}


def to_arrays(tensors: Mapping[str, Tensor]) -> Arrays:
    """Copies, for filters change them in place."""
    if any(t.dtype is torch.bfloat16 for t in tensors.values()):
        raise ModelError("the frameworks send numpy arrays, which have no bfloat16: set the model's dtype.")
    return {name: t.detach().cpu().numpy().copy() for name, t in tensors.items()}


def change(update: Update, received: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """By name, what is sent minus what was received, of the buffers too if they are sent."""
    if update.kind is not UpdateKind.DELTA:
        raise SpecError("a filter of a framework was given a gradient: set algorithm = 'fedavg'.")
    moved = {name: b - received[name] for name, b in (update.buffers or {}).items()}
    return {**update.tensors, **moved}


def changed_update(
    update: Update, delta: Mapping[str, NDArray[Any]], received: Mapping[str, Tensor]
) -> Update:
    """The update with another change of the weights; what is missing in it was not sent, and zeros stand for
    it."""
    tensors = {
        name: _like(delta[name], t) if name in delta else torch.zeros_like(t)
        for name, t in update.tensors.items()
    }
    buffers = update.buffers
    if buffers is not None:
        kept = {name: b for name, b in buffers.items() if name in delta}
        buffers = {name: received[name] + _like(delta[name], b) for name, b in kept.items()}
    return Update(kind=UpdateKind.DELTA, tensors=tensors, num_examples=update.num_examples, buffers=buffers)


def _like(array: NDArray[Any], tensor: Tensor) -> Tensor:
    found = torch.as_tensor(np.asarray(array))
    if found.shape != tensor.shape:
        raise NotApplicable(
            f"the filter sends an array of shape {tuple(found.shape)} where the model has "
            f"{tuple(tensor.shape)}: what it encodes is not known here."
        )
    return found.to(device=tensor.device, dtype=tensor.dtype)


def with_weights(broadcast: Broadcast, arrays: Mapping[str, NDArray[Any]]) -> Broadcast:
    """The same model with other weights, where some are other ones."""
    state = broadcast.model.state_dict()
    changed = {n: _like(a, state[n]) for n, a in arrays.items() if n in state}
    if all(torch.equal(state[name], value) for name, value in changed.items()):
        return broadcast
    model = copy.deepcopy(broadcast.model)
    model.load_state_dict({**state, **changed})
    return Broadcast(model, broadcast.round)


@contextmanager
def as_it_runs(seeds: random.Random, name: str) -> Iterator[None]:
    """Noise drawn from our seed, logs kept quiet, and whatever is raised in one sentence.

    Filters draw from numpy's, Python's or torch's global generator: all are put back as they were.
    """
    seed = seeds.getrandbits(32)
    state, plain = np.random.get_state(), random.getstate()
    loggers = [logging.getLogger(each) for each in ("flwr", "nvflare")]
    levels = [one.level for one in loggers]
    try:
        with torch.random.fork_rng():
            np.random.seed(seed)
            random.seed(seed)
            torch.manual_seed(seed)
            for one in loggers:
                one.setLevel(logging.ERROR)
            yield
    except SeepageError:
        raise
    except Exception as error:  # code from outside may raise anything
        raise SpecError(f"defense '{name}' broke on this update ({in_words(error)})") from error
    finally:
        np.random.set_state(state)
        random.setstate(plain)
        for one, level in zip(loggers, levels, strict=True):
            one.setLevel(level)
