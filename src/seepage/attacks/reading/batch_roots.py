"""Where the examples behind batch norm in train mode lie: roots in the span of their differences.

x = m + V a for the batch's mean m and the rows V of G. See `batch_statistics`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.attacks.reading.peeling.residual import Found, Residual
from seepage.attacks.reading.peeling.tolerances import COARSE, FINE, MOST_ROWS
from seepage.attacks.reading.unmixing.descent import Roots, distinct
from seepage.attacks.reading.unmixing.gather import ROWS_EACH
from seepage.attacks.reading.unmixing.mixture import column_space
from seepage.attacks.reading.unmixing.next_equations import Span, descend
from seepage.attacks.reading.unmixing.starts import made_up_inputs
from seepage.core.types import Exchange, Knowledge
from seepage.models.between import Between
from seepage.models.gradients import LayerGradient, layer_gradient
from seepage.models.layers import LinearLayer

_STARTS, _ROUNDS, _DRY = 96, 100, 20
"""Starts at a time, rounds of them, and rounds in vain that end the search. Cost: time."""
_PASSES = 10
"""Times that the average of what the next layer reads is taken from the places that fit it. Cost: time; each
makes its error some ten times smaller."""
_DRAWN = 1024
"""Draws for a first guess of it. Cost: time."""


@dataclass(frozen=True)
class Rows:
    """The span of the rows [G_w | G_b] of a layer's gradient."""

    basis: Tensor
    """(m + 1, v) orthonormal"""
    sizes: Tensor
    """(v,) singular values"""
    noise: float
    """Root mean square of what rounding adds to each number of the gradient."""


@dataclass(frozen=True)
class Layer:
    """The layer in the coordinates x = m + V a."""

    basis: Tensor
    """(m, n - 1) V"""
    gates: Tensor
    """(N, n): outputs are gates [a, 1]."""
    spread: Tensor
    """(N,) of the outputs over the batch."""
    between: Between


def rows_of(gradient: LayerGradient) -> Rows | None:
    """Of the layer's gradient; None where no gap parts its rank from rounding."""
    residual = Residual(gradient)
    index = (residual.norm > 0).nonzero().squeeze(1)[:MOST_ROWS]
    none, ones = Found.none(gradient.weight), gradient.bias[index].unsqueeze(1).double()
    found = column_space(lambda: residual.columns(index, none), ones, most=(len(index) - 1) // ROWS_EACH)
    if found is None:
        return None
    directions, sizes, beyond, width = found
    back = directions / sizes
    rows = [part.double().T @ back for part in residual.columns(index, none)]
    basis = torch.linalg.qr(torch.cat([*rows, ones.T @ back])).Q
    return Rows(basis, sizes, float(beyond) / (len(index) ** 0.5 + width**0.5))


def norm_behind(model: nn.Module, layer: LinearLayer) -> tuple[Tensor, Tensor] | None:
    """(N,) mean and (N,) spread that the batch norm right behind the layer sent."""
    modules = [module for module in model.modules() if not list(module.children())]
    behind = modules[modules.index(model.get_submodule(layer.name)) + 1 :][:1]
    if (
        not behind
        or not isinstance(norm := behind[0], nn.BatchNorm1d)
        or norm.num_features != layer.out_features
    ):
        return None
    assert norm.running_mean is not None and norm.running_var is not None
    return norm.running_mean.double(), (norm.running_var.double() + norm.eps).sqrt()


def solved(model: nn.Module, layer: LinearLayer, outputs: Tensor) -> Tensor:
    """(m,) what the layer reads where it puts `outputs` (N,) out; the smallest such, if there are several."""
    weight, bias = _parameters(model, layer)
    return _least_squares(weight, outputs - bias)


def _parameters(model: nn.Module, layer: LinearLayer) -> tuple[Tensor, Tensor | float]:
    weight = model.get_parameter(layer.weight).detach().double()
    return weight, 0.0 if layer.bias is None else model.get_parameter(layer.bias).detach().double()


def _least_squares(matrix: Tensor, right: Tensor) -> Tensor:
    solution: Tensor = torch.linalg.lstsq(matrix, right.unsqueeze(1), driver="gelsd").solution.squeeze(1)
    return solution


def roots_of(
    here: Layer, model: nn.Module, layer: LinearLayer, exchange: Exchange, known: Knowledge
) -> Roots | None:
    """As many as there are examples, whose sum is 0; None: not found."""
    later, count = here.between.next, here.gates.shape[1]
    rows = rows_of(layer_gradient(exchange, known, later))
    if rows is None or len(rows.sizes) not in (count - 1, count):
        return None
    held = rows.basis
    average, outputs = None, torch.empty(0)
    if held.shape[1] == count - 1:  # batch norm stands behind the next layer too
        if (norm := norm_behind(model, later)) is None:
            return None
        outputs, average = norm[0], _guessed(here, model, norm[0])
    elif later.bias is None:
        return None  # what it reads is known up to its size only
    ones = torch.zeros(count, dtype=torch.float64, device=held.device)
    ones[-1] = 1.0
    generator = torch.Generator().manual_seed(known.seed)
    starts = _starts(here, model, layer, known, generator)
    if average is not None:
        weight, bias = _parameters(model, later)
        average = _learned(here, ones, held, average, starts[:_STARTS], (weight, outputs - bias))
    roots = _searched(here, ones, _span(held, average), starts, generator)
    if roots is None:
        return None
    together = roots.a[:, :-1].sum(0).norm() / roots.a[:, :-1].norm(dim=1).max()
    return roots if float(together) <= COARSE else None


def _guessed(here: Layer, model: nn.Module, outputs: Tensor) -> Tensor:
    """(N,) what the next layer reads on average, as far as the mean of its `outputs` says so.

    The rest is what it reads of outputs that are normal with the statistics that were sent.
    """
    chance = torch.randn(_DRAWN, len(here.spread), generator=torch.Generator().manual_seed(0))
    read = here.between.apply(here.gates[:, -1] + chance.to(here.spread) * here.spread).mean(0)
    weight, _ = _parameters(model, here.between.next)
    return read + solved(model, here.between.next, outputs - weight @ read)


def _learned(
    here: Layer,
    ones: Tensor,
    held: Tensor,
    average: Tensor,
    starts: Tensor,
    sent: tuple[Tensor, Tensor],
) -> Tensor:
    """(N,) the average, from the places that nearly fit a guess of it.

    h(a) - average lies in `held` at every example, so what each leaves of h(a) outside is the same. At places
    that fit a guess as well as they can, it is off by that part of the guess' error which moving the place
    makes good: of n - 1 dimensions out of N, and another one at each place. Behind a ReLU all could be
    multiples: its size is the one that the mean outputs want, W average = m for `sent` = (W, m).
    """
    a = starts
    for _ in range(_PASSES):
        roots = descend(here.gates, ones, here.between, _span(held, average), a, None)
        size = roots.values.norm(dim=1)
        near = roots.residual <= torch.maximum(2 * roots.residual.min(), FINE * size)
        roots = roots.select(near.nonzero().squeeze(1))
        roots = roots.select(distinct(roots.a, apart=COARSE * roots.a.norm(dim=1)))
        a = roots.a
        whole = torch.cat([roots.values.mean(0).unsqueeze(1), held[:-1]], dim=1)  # (N, n)
        average = whole @ _least_squares(sent[0] @ whole, sent[1])
    return average


def _span(held: Tensor, average: Tensor | None) -> Span:
    """[h, 1] of an example lies in `held` (N + 1, v), or is [`average`, 1] (N,) and something there."""
    if average is not None:
        whole = torch.cat([average, average.new_ones(1)]).unsqueeze(1)
        held = torch.linalg.qr(torch.cat([held, whole], dim=1)).Q
    return Span(held, torch.ones_like(held[0]), noise=0.0, constant=1.0)


def _starts(
    here: Layer, model: nn.Module, layer: LinearLayer, known: Knowledge, generator: torch.Generator
) -> Tensor:
    """(t, n) made-up inputs less their mean, with outputs that spread as those of the batch."""
    draw = made_up_inputs(model, layer, known.input, model_units=known.normalised, seed=known.seed)
    made = draw(here.gates.shape[1]).double()
    made = (made - made.mean(0)) @ here.basis
    # Every other one is as likely in any direction of the span: examples may be nothing like what is made up.
    ways = [made, torch.eye(made.shape[1]).to(made)]
    drawn = [torch.randn(_ROUNDS * _STARTS // 2, len(way), generator=generator).to(way) @ way for way in ways]
    a = torch.stack(drawn, dim=1).flatten(0, 1)
    size = (a @ here.gates[:, :-1].T / here.spread).square().mean(1, keepdim=True).sqrt()
    return torch.cat([a / size, torch.ones_like(a[:, :1])], dim=1)


def _searched(
    here: Layer, ones: Tensor, span: Span, starts: Tensor, generator: torch.Generator
) -> Roots | None:
    """Each root once; the last one is what makes their sum 0. None: too few or too many."""
    count, vain = len(ones), 0
    have: Roots | None = None
    for some in starts.split(_STARTS):
        before = 0 if have is None else len(have.a)
        # Around the mean of those that are unknown.
        centre = torch.zeros_like(ones) if have is None else -have.a.sum(0) * (1 - ones) / (count - before)
        more = descend(here.gates, ones, here.between, span, some + centre, generator)
        more = more.select((more.residual <= FINE * more.values.norm(dim=1)).nonzero().squeeze(1))
        joined = more if have is None else Roots.joined([have, more])
        joined = joined.select(joined.residual.argsort())
        have = joined.select(distinct(joined.a, apart=COARSE * joined.a.norm(dim=1)))
        if len(have.a) == count - 1:
            last = torch.cat([-have.a[:, :-1].sum(0), ones[-1:]]).unsqueeze(0)
            have = Roots.joined([have, descend(here.gates, ones, here.between, span, last, None)])
        vain = 0 if len(have.a) > before else vain + 1
        if len(have.a) >= count or vain == _DRY:
            break
    return have if have is not None and len(have.a) == count else None
