"""Recurrent layers that vmap can take apart by example.

torch's fused LSTM, GRU and RNN have no rule for vmap, and unrolled by hand they cost several times the fused
step. Here the way forward is the fused one, over all examples at once. The way back goes through the time
steps once, for all examples at once too, and gives what each step of each example adds to the gates. All
gradients follow from that: those of the weights are sums over t of delta_t x_t^T and delta_t h_(t-1)^T, one
product over all time steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seepage.defenses.recurrent_deltas import State, deltas, states_before


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What the gradients of one layer in one direction are made of, by example.

    deltas: (n, steps, gates) each, by what the input and what the state gave the gates; the same where
    the gates take the sum of both.
    """

    inputs: Tensor
    before: Tensor
    of_given: Tensor
    of_kept: Tensor


Tape = dict[str, list[Taken]]
"""By layer and direction, "layer.l0_reverse": one entry for each time it was called."""


@dataclass(frozen=True, kw_only=True)
class _Place:
    mode: str
    name: str
    tape: Tape | None
    """Where to put `Taken`s in the place of gradients of the weights."""


def _forward(mode: str, x: Tensor, weights: Sequence[Tensor], first: State) -> State:
    """(T, batch, width) of every h, and the last c of an LSTM."""
    start = [part.unsqueeze(0) for part in first]
    with torch.no_grad():
        if mode == "LSTM":
            out, _, cell = torch.lstm(x, start, list(weights), True, 1, 0.0, False, False, False)
            return out, cell[0]
        layer = {"GRU": torch.gru, "RNN_TANH": torch.rnn_tanh, "RNN_RELU": torch.rnn_relu}[mode]
        return (layer(x, start[0], list(weights), True, 1, 0.0, False, False, False)[0],)


def _together(tensor: Tensor, dim: int | None, size: int, at: int) -> Tensor:
    """vmap's examples and the layer's own batch as one dimension, `at` its place."""
    whole = tensor.unsqueeze(at) if dim is None else tensor.movedim(dim, at)
    return whole.expand(*whole.shape[:at], size, *whole.shape[at + 1 :]).flatten(at, at + 1)


def _by_example(rows: Tensor, size: int) -> Tensor:
    """(T, n batch, numbers) to (n, T batch, numbers)."""
    found: Tensor = rows.unflatten(1, (size, -1)).transpose(0, 1).flatten(1, 2)
    return found


class _Recurrence(torch.autograd.Function):
    """All time steps of one layer in one direction. x: (T, batch, features); then its four weights.

    Under vmap the examples are one large batch, taken at once: only the weights' gradient is kept apart.
    """

    @staticmethod
    def forward(place: _Place, x: Tensor, *more: Tensor) -> State:
        return _forward(place.mode, x, more[:4], more[4:])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: State) -> None:
        ctx.place = inputs[0]
        ctx.save_for_backward(*inputs[1:], output[0])

    @staticmethod
    def backward(ctx: Any, *arriving: Tensor) -> tuple[Tensor | None, ...]:
        x, of_x, of_h, bias, kept_bias, *first, out = ctx.saved_tensors
        found: State = _Deltas.apply(  # type: ignore[no-untyped-call]
            ctx.place, x, of_x, of_h, bias, kept_bias, out, *first, *arriving
        )
        of_given, of_kept, *by_first = found if ctx.place.mode == "GRU" else (found[0], *found)
        by_x = of_given @ of_x if ctx.needs_input_grad[1] else None
        if ctx.place.tape is not None:
            return None, by_x, None, None, None, None, *by_first
        rows, kept_rows = of_given.flatten(0, 1), of_kept.flatten(0, 1)
        by_weights = rows.T @ x.flatten(0, 1), kept_rows.T @ states_before(out, tuple(first)).flatten(0, 1)
        return None, by_x, *by_weights, rows.sum(dim=0), kept_rows.sum(dim=0), *by_first

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], place: _Place, *given: Tensor) -> tuple[Any, Any]:
        weights = _shared(dims, given)
        size = info.batch_size
        x = _together(given[0], dims[1], size, 1)
        first = tuple(_together(part, dim, size, 0) for part, dim in zip(given[5:], dims[6:], strict=True))
        out, *cell = _forward(place.mode, x, weights, first)
        return (out.unflatten(1, (size, -1)), *(c.unflatten(0, (size, -1)) for c in cell)), (
            1,
            *(0 for _ in cell),
        )


class _Deltas(torch.autograd.Function):
    """The way back, with a rule of its own. Nobody differentiates it again."""

    @staticmethod
    def forward(place: _Place, x: Tensor, *more: Tensor) -> State:
        weights, out, states = more[:4], more[4], more[5:]
        first, arriving = states[: len(states) // 2], states[len(states) // 2 :]
        of_given, of_kept, by_first = deltas(place.mode, x, weights, out, first, arriving)
        return of_given, *([of_kept] if place.mode == "GRU" else []), *by_first

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: State) -> None:
        pass

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], place: _Place, *given: Tensor) -> tuple[Any, Any]:
        weights = _shared(dims, given)
        size = info.batch_size
        x, out = _together(given[0], dims[1], size, 1), _together(given[5], dims[6], size, 1)
        parts = (len(given) - 6) // 2
        # (T, batch, width) is what arrives at h; states before and after are (batch, width)
        states = [
            _together(part, dim, size, 1 if number == parts else 0)
            for number, (part, dim) in enumerate(zip(given[6:], dims[7:], strict=True))
        ]
        first, arriving = tuple(states[:parts]), tuple(states[parts:])
        of_given, of_kept, by_first = deltas(place.mode, x, weights, out, first, arriving)
        if place.tape is not None:
            added = _by_example(of_given, size)
            taken = Taken(
                inputs=_by_example(x, size),
                before=_by_example(states_before(out, first), size),
                of_given=added,
                of_kept=added if of_kept is of_given else _by_example(of_kept, size),
            )
            place.tape.setdefault(place.name, []).append(taken)
        rows = [of_given, of_kept] if place.mode == "GRU" else [of_given]
        found = (
            *(part.unflatten(1, (size, -1)) for part in rows),
            *(part.unflatten(0, (size, -1)) for part in by_first),
        )
        return found, (*(1 for _ in rows), *(0 for _ in by_first))


def _shared(dims: Sequence[int | None], given: Sequence[Tensor]) -> Sequence[Tensor]:
    if any(dim is not None for dim in dims[2:6]):
        raise RuntimeError("a recurrence with other weights for each example is not unrolled")
    return given[1:5]


def unrolled(
    layer: nn.RNNBase, inputs: Tensor, first: Any = None, *, name: str = "", tape: Tape | None = None
) -> tuple[Tensor, Any]:
    """What `layer(inputs, first)` gives, from torch's own documented equations.

    tape: where the parts of the weights' gradients go, by example, under `name`, in the place of gradients.

    >>> layer = nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True)
    >>> x = torch.rand(2, 5, 3)
    >>> torch.allclose(unrolled(layer, x)[0], layer(x)[0], atol=1e-6)
    True
    """
    if not isinstance(inputs, Tensor) or inputs.ndim != 3 or layer.proj_size:
        raise RuntimeError("packed sequences, single sequences and projections are not unrolled")
    x = inputs.transpose(0, 1) if layer.batch_first else inputs  # (T, batch, features)
    directions = 2 if layer.bidirectional else 1
    parts = 2 if layer.mode == "LSTM" else 1
    if first is None:
        zeros = x.new_zeros(layer.num_layers * directions, x.shape[1], layer.hidden_size)
        starts = (zeros,) * parts
    else:
        starts = first if parts == 2 else (first,)
    last: list[State] = []
    for number in range(layer.num_layers):
        outs = []
        for direction in range(directions):
            start = tuple(part[number * directions + direction] for part in starts)
            suffix = f"l{number}{'_reverse' if direction else ''}"
            place = _Place(mode=layer.mode, name=f"{name}.{suffix}", tape=tape)
            out, end = _one(layer, x, start, suffix, place)
            outs.append(out)
            last.append(end)
        x = torch.cat(outs, dim=-1)
        if number < layer.num_layers - 1 and layer.dropout:
            x = F.dropout(x, layer.dropout, layer.training)
    ends = tuple(torch.stack([state[part] for state in last]) for part in range(parts))
    return x.transpose(0, 1) if layer.batch_first else x, ends if parts == 2 else ends[0]


def _one(layer: nn.RNNBase, x: Tensor, start: State, suffix: str, place: _Place) -> tuple[Tensor, State]:
    reverse = suffix.endswith("reverse")
    weights = [getattr(layer, f"weight_{kind}_{suffix}") for kind in ("ih", "hh")]
    if layer.bias:
        weights += [getattr(layer, f"bias_{kind}_{suffix}") for kind in ("ih", "hh")]
    else:
        weights += [weights[1].new_zeros(len(weights[1]))] * 2
    found: State = _Recurrence.apply(place, x.flip(0) if reverse else x, *weights, *start)  # type: ignore[no-untyped-call]
    out, *cell = found
    return out.flip(0) if reverse else out, (out[-1], *cell)


@contextmanager
def taken_apart(model: nn.Module, tape: Tape | None = None) -> Iterator[None]:
    """The model with its recurrent layers unrolled; as it was afterwards."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, nn.RNNBase)}
    try:
        for name, layer in layers.items():
            layer.forward = partial(unrolled, layer, name=name, tape=tape)
        yield
    finally:
        for layer in layers.values():
            layer.__dict__.pop("forward", None)
