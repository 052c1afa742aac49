"""Back through the time steps of a recurrent layer: what each step of each sequence adds to the gates.

From torch's own documented equations; one pass over the time steps, for all sequences at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

State = tuple[Tensor, ...]
"""(h,) or, of an LSTM, (h, c): (batch, width) each."""
Back = Callable[[int, Sequence[Tensor], Tensor, Tensor], list[Tensor | None]]
"""(time step, gradient by the state after it, and two places to write to): writes the gradients by what the
input and what the state gave the gates, and returns those by the state before, as far as they do not go
through the gates."""

_sigmoid_slope, _tanh_slope = torch.ops.aten.sigmoid_backward, torch.ops.aten.tanh_backward
"""(a, y) to a y (1 - y) and to a (1 - y^2)."""


def _lstm(given: Tensor, kept: Tensor, out: Tensor, first: State) -> Back:
    """Gates i, f, g, o; c = f c' + i g, h = o tanh(c)."""
    i, f, g, o = given.add_(kept).chunk(4, dim=-1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    added, cells = i * g, out.new_empty(len(out) + 1, *out.shape[1:])
    cells[0] = first[1]
    for old, new, keep, add in zip(
        cells[:-1].unbind(), cells[1:].unbind(), f.unbind(), added.unbind(), strict=True
    ):
        torch.addcmul(add, keep, old, out=new)
    bent = cells[1:].tanh()
    by_c = [_sigmoid_slope(g, i), _sigmoid_slope(cells[:-1], f), _tanh_slope(i, g)]
    slopes = torch.cat([*by_c, _sigmoid_slope(bent, o)], dim=-1).unbind()
    into_c, kept_c = _tanh_slope(o, bent).unbind(), f.unbind()

    def step(t: int, flowing: Sequence[Tensor], of_given: Tensor, of_kept: Tensor) -> list[Tensor | None]:
        d_c = torch.addcmul(flowing[1], flowing[0], into_c[t])
        torch.mul(torch.cat([d_c, d_c, d_c, flowing[0]], dim=-1), slopes[t], out=of_kept)
        return [None, d_c.mul_(kept_c[t])]

    return step


def _gru(given: Tensor, kept: Tensor, out: Tensor, first: State) -> Back:
    """Gates r, z, n; h = (1 - z) n + z h', where r gates what the state gives n."""
    (ri, zi, ni), (rh, zh, nh) = given.chunk(3, dim=-1), kept.chunk(3, dim=-1)
    r, z = (ri + rh).sigmoid(), (zi + zh).sigmoid()
    n = torch.addcmul(ni, r, nh).tanh()
    slope = _tanh_slope(1 - z, n)
    both = [_sigmoid_slope(slope * nh, r), _sigmoid_slope(states_before(out, first) - n, z)]
    by_given, by_kept = torch.cat([*both, slope], dim=-1), torch.cat([*both, slope * r], dim=-1)

    def step(t: int, flowing: Sequence[Tensor], of_given: Tensor, of_kept: Tensor) -> list[Tensor | None]:
        three = torch.cat([flowing[0]] * 3, dim=-1)
        torch.mul(three, by_given[t], out=of_given)
        torch.mul(three, by_kept[t], out=of_kept)
        return [flowing[0] * z[t]]

    return step


def _tanh(given: Tensor, kept: Tensor, out: Tensor, first: State) -> Back:
    """h = tanh(given + kept)."""
    return _plain(1 - out.square())


def _relu(given: Tensor, kept: Tensor, out: Tensor, first: State) -> Back:
    """h = max(given + kept, 0)."""
    return _plain((out > 0).to(out))


def _plain(slope: Tensor) -> Back:
    def step(t: int, flowing: Sequence[Tensor], of_given: Tensor, of_kept: Tensor) -> list[Tensor | None]:
        torch.mul(flowing[0], slope[t], out=of_kept)
        return [None]

    return step


WAYS_BACK: dict[str, Callable[[Tensor, Tensor, Tensor, State], Back]] = {
    "LSTM": _lstm,
    "GRU": _gru,
    "RNN_TANH": _tanh,
    "RNN_RELU": _relu,
}


def states_before(out: Tensor, first: State) -> Tensor:
    """h_(t-1) for every t."""
    return torch.cat([first[0].unsqueeze(0), out[:-1]])


def deltas(
    mode: str, x: Tensor, weights: Sequence[Tensor], out: Tensor, first: State, arriving: State
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Gradients by what input and state gave the gates, (T, batch, gates) each, and by the first state."""
    of_x, of_h, bias, kept_bias = weights
    given = F.linear(x, of_x, bias)
    back = WAYS_BACK[mode](given, F.linear(states_before(out, first), of_h, kept_bias), out, first)
    of_kept = torch.empty_like(given)
    of_given = torch.empty_like(given) if mode == "GRU" else of_kept
    at_given, at_kept, at_h = of_given.unbind(), of_kept.unbind(), arriving[0].unbind()
    flowing = [at_h[-1], *arriving[1:]]
    for t in reversed(range(len(x))):
        direct, *others = back(t, flowing, at_given[t], at_kept[t])
        by_h = at_kept[t] @ of_h if t == 0 else torch.addmm(at_h[t - 1], at_kept[t], of_h)
        flowing = [by_h if direct is None else by_h.add_(direct), *(d for d in others if d is not None)]
    return of_given, of_kept, flowing
