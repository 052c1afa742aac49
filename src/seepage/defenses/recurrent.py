"""Recurrent layers that vmap can take apart by example.

torch's fused LSTM, GRU and RNN have no rule for vmap. Unrolled by hand they have one, but each time step then
adds one outer product an example to the weights' gradient, and moving those about costs ten times the step.
Here the weights of the recurrence get theirs at the end, in one product over all time steps: the sum over t
of delta_t h_(t-1)^T is a matrix product, which vmap makes one batched product of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

State = tuple[Tensor, ...]
"""(h,) or, of an LSTM, (h, c): (batch, width) each."""
Back = Callable[[int, Sequence[Tensor]], tuple[Tensor, Tensor, list[Tensor]]]
"""(time step, gradient by the state after it) to the gradients by what the input and what the state gave the
gates, and by the state before it as far as it does not go through the gates."""


class _LSTM:
    """Gates i, f, g, o; c = f c' + i g, h = o tanh(c)."""

    @staticmethod
    def step(given: Tensor, kept: Tensor, state: State) -> State:
        i, f, g, o = (given + kept).chunk(4, dim=-1)
        c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c

    @staticmethod
    def back(given: Tensor, kept: Tensor, states: Sequence[Tensor]) -> Back:
        i, f, g, o = (given + kept).chunk(4, dim=-1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        old, bent = states[1][:-1], states[1][1:].tanh()
        by_c = torch.stack([g * i * (1 - i), old * f * (1 - f), i * (1 - g * g)], dim=-2)  # (T, n, 3, width)
        by_h, into_c = bent * o * (1 - o), o * (1 - bent * bent)

        def step(t: int, flowing: Sequence[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
            d_h, d_c = flowing[0], flowing[1] + flowing[0] * into_c[t]
            delta = torch.cat([(d_c.unsqueeze(-2) * by_c[t]).flatten(-2), d_h * by_h[t]], dim=-1)
            return delta, delta, [torch.zeros_like(d_h), d_c * f[t]]

        return step


class _GRU:
    """Gates r, z, n; h = (1 - z) n + z h', where r gates what the state gives n."""

    @staticmethod
    def step(given: Tensor, kept: Tensor, state: State) -> State:
        (ri, zi, ni), (rh, zh, nh) = given.chunk(3, dim=-1), kept.chunk(3, dim=-1)
        z = (zi + zh).sigmoid()
        n = (ni + (ri + rh).sigmoid() * nh).tanh()
        return ((1 - z) * n + z * state[0],)

    @staticmethod
    def back(given: Tensor, kept: Tensor, states: Sequence[Tensor]) -> Back:
        (ri, zi, ni), (rh, zh, nh) = given.chunk(3, dim=-1), kept.chunk(3, dim=-1)
        r, z = (ri + rh).sigmoid(), (zi + zh).sigmoid()
        n = (ni + r * nh).tanh()
        slope = (1 - z) * (1 - n * n)
        both = [slope * nh * r * (1 - r), (states[0][:-1] - n) * z * (1 - z)]
        by_given, by_kept = torch.cat([*both, slope], dim=-1), torch.cat([*both, slope * r], dim=-1)

        def step(t: int, flowing: Sequence[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
            three = torch.cat([flowing[0]] * 3, dim=-1)
            return three * by_given[t], three * by_kept[t], [flowing[0] * z[t]]

        return step


class _Tanh:
    """h = tanh(given + kept)."""

    @staticmethod
    def step(given: Tensor, kept: Tensor, state: State) -> State:
        return ((given + kept).tanh(),)

    @staticmethod
    def back(given: Tensor, kept: Tensor, states: Sequence[Tensor]) -> Back:
        slope = 1 - states[0][1:].square()

        def step(t: int, flowing: Sequence[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
            delta = flowing[0] * slope[t]
            return delta, delta, [torch.zeros_like(delta)]

        return step


class _ReLU:
    """h = max(given + kept, 0)."""

    @staticmethod
    def step(given: Tensor, kept: Tensor, state: State) -> State:
        return ((given + kept).relu(),)

    @staticmethod
    def back(given: Tensor, kept: Tensor, states: Sequence[Tensor]) -> Back:
        active = (states[0][1:] > 0).to(given)

        def step(t: int, flowing: Sequence[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
            delta = flowing[0] * active[t]
            return delta, delta, [torch.zeros_like(delta)]

        return step


CELLS: dict[str, Any] = {"LSTM": _LSTM, "GRU": _GRU, "RNN_TANH": _Tanh, "RNN_RELU": _ReLU}


def _forward(mode: str, given: Tensor, weight: Tensor, bias: Tensor, first: State) -> State:
    """Every state, the first among them: (T + 1, batch, width) each."""
    states: list[State] = [first]
    for one in given:
        states.append(CELLS[mode].step(one, F.linear(states[-1][0], weight, bias), states[-1]))
    return tuple(torch.stack([state[part] for state in states]) for part in range(len(first)))


def _backward(
    mode: str, given: Tensor, weight: Tensor, bias: Tensor, states: State, arriving: State
) -> tuple[Tensor, Tensor, State]:
    """Gradients by what input and state gave the gates, (T, batch, gates) each, and by the first state."""
    back = CELLS[mode].back(given, F.linear(states[0][:-1], weight, bias), states)
    flowing = [part[-1] for part in arriving]
    of_given: list[Tensor] = []
    of_kept: list[Tensor] = []
    for t in reversed(range(len(given))):
        d_given, d_kept, through = back(t, flowing)
        of_given.append(d_given)
        of_kept.append(d_kept)
        flowing = [d + part[t] for d, part in zip(through, arriving, strict=True)]
        flowing[0] = torch.addmm(flowing[0], d_kept, weight)
    return torch.stack(of_given[::-1]), torch.stack(of_kept[::-1]), tuple(flowing)


def _together(tensor: Tensor, dim: int | None, size: int, at: int) -> Tensor:
    """vmap's examples and the layer's own batch as one dimension, `at` its place."""
    whole = tensor.unsqueeze(at) if dim is None else tensor.movedim(dim, at)
    return whole.expand(*whole.shape[:at], size, *whole.shape[at + 1 :]).flatten(at, at + 1)


class _Recurrence(torch.autograd.Function):
    """All time steps of one layer in one direction. given: (T, batch, gates); weight: (gates, width).

    Under vmap the examples are one large batch, taken at once: only the weights' gradient is kept apart.
    """

    @staticmethod
    def forward(mode: str, given: Tensor, weight: Tensor, bias: Tensor, *first: Tensor) -> State:
        return _forward(mode, given, weight, bias, first)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: State) -> None:
        mode, given, weight, bias, *_ = inputs
        ctx.mode = mode
        ctx.save_for_backward(given, weight, bias, *output)

    @staticmethod
    def backward(ctx: Any, *arriving: Tensor) -> tuple[Tensor | None, ...]:
        given, weight, bias, *states = ctx.saved_tensors
        found: State = _Backward.apply(ctx.mode, given, weight, bias, *states, *arriving)  # type: ignore[no-untyped-call]
        return (None, *found)

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], mode: str, *given: Tensor) -> tuple[Any, Any]:
        weight, bias = _shared(dims, given)
        size = info.batch_size
        inputs = _together(given[0], dims[1], size, 1)
        first = tuple(_together(part, dim, size, 0) for part, dim in zip(given[3:], dims[4:], strict=True))
        states = _forward(mode, inputs, weight, bias, first)
        return tuple(part.unflatten(1, (size, -1)) for part in states), (1,) * len(states)


class _Backward(torch.autograd.Function):
    """The way back, with a rule of its own. Nobody differentiates it again."""

    @staticmethod
    def forward(mode: str, given: Tensor, weight: Tensor, bias: Tensor, *both: Tensor) -> State:
        states, arriving = both[: len(both) // 2], both[len(both) // 2 :]
        of_given, of_kept, first = _backward(mode, given, weight, bias, states, arriving)
        rows = of_kept.flatten(0, 1)
        return of_given, rows.T @ states[0][:-1].flatten(0, 1), rows.sum(dim=0), *first

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: State) -> None:
        pass

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], mode: str, *given: Tensor) -> tuple[Any, Any]:
        weight, bias = _shared(dims, given)
        size = info.batch_size
        inputs = _together(given[0], dims[1], size, 1)
        both = [_together(part, dim, size, 1) for part, dim in zip(given[3:], dims[4:], strict=True)]
        states, arriving = tuple(both[: len(both) // 2]), tuple(both[len(both) // 2 :])
        of_given, of_kept, first = _backward(mode, inputs, weight, bias, states, arriving)
        rows = of_kept.unflatten(1, (size, -1)).transpose(0, 1).flatten(1, 2)  # (n, T batch, gates)
        before = states[0][:-1].unflatten(1, (size, -1)).transpose(0, 1).flatten(1, 2)  # (n, T batch, width)
        found = (
            of_given.unflatten(1, (size, -1)),
            rows.transpose(1, 2) @ before,
            rows.sum(dim=1),
            *(part.unflatten(0, (size, -1)) for part in first),
        )
        return found, (1, 0, 0, *(0 for _ in first))


def _shared(dims: Sequence[int | None], given: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    if dims[2] is not None or dims[3] is not None:
        raise RuntimeError("a recurrence with other weights for each example is not unrolled")
    return given[1], given[2]


def unrolled(layer: nn.RNNBase, inputs: Tensor, first: Any = None) -> tuple[Tensor, Any]:
    """What `layer(inputs, first)` gives, from torch's own documented equations.

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
            out, end = _one(layer, x, start, f"l{number}{'_reverse' if direction else ''}", bool(direction))
            outs.append(out)
            last.append(end)
        x = torch.cat(outs, dim=-1)
        if number < layer.num_layers - 1 and layer.dropout:
            x = F.dropout(x, layer.dropout, layer.training)
    ends = tuple(torch.stack([state[part] for state in last]) for part in range(parts))
    return x.transpose(0, 1) if layer.batch_first else x, ends if parts == 2 else ends[0]


def _one(layer: nn.RNNBase, x: Tensor, start: State, name: str, reverse: bool) -> tuple[Tensor, State]:
    weight, recurrent = getattr(layer, f"weight_ih_{name}"), getattr(layer, f"weight_hh_{name}")
    bias = getattr(layer, f"bias_ih_{name}") if layer.bias else None
    kept_bias = getattr(layer, f"bias_hh_{name}") if layer.bias else recurrent.new_zeros(len(recurrent))
    given = F.linear(x.flip(0) if reverse else x, weight, bias)  # one product over all time steps
    states: State = _Recurrence.apply(layer.mode, given, recurrent, kept_bias, *start)  # type: ignore[no-untyped-call]
    out = states[0][1:]
    return out.flip(0) if reverse else out, tuple(part[-1] for part in states)


@contextmanager
def taken_apart(model: nn.Module) -> Iterator[None]:
    """The model with its recurrent layers unrolled; as it was afterwards."""
    layers = [module for module in model.modules() if isinstance(module, nn.RNNBase)]
    try:
        for layer in layers:
            layer.forward = unrolled.__get__(layer)
        yield
    finally:
        for layer in layers:
            layer.__dict__.pop("forward", None)
