"""How far a simulated update is from the observed one. Both are lists of tensors, one for each parameter.

Every distance is a pure function of one restart's tensors to a scalar (vmap batches it), sums layer by
layer so that no concatenated copy of a gradient is ever made, and is relative to the observed update, so
that priors keep their weight whatever the learning rate or the loss's reduction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Tensors = Sequence[Tensor]
Weights = Sequence[float] | None
Distance = Callable[[Tensors, Tensors, Weights], Tensor]
"""(simulated, observed, weight of each layer or None) to a scalar, 0 where the two agree.

The order of values inside a tensor must not matter: fast objectives keep weights in an order of their own."""

Pull = Callable[[Tensors], tuple[Tensor, Tensors]]
"""Simulated tensors, which may be overwritten, to the distance and its gradient with respect to each."""


def _total(terms: list[Tensor], weights: Weights) -> Tensor:
    if weights is not None:
        terms = [w * t for w, t in zip(weights, terms, strict=True)]
    return torch.stack(terms).sum()


def _inner(a: Tensors, b: Tensors, weights: Weights) -> Tensor:
    # not torch.dot: vmap turns it into bmm, which is many times slower
    return _total([(x * y).sum() for x, y in zip(a, b, strict=True)], weights)


def cosine(simulated: Tensors, observed: Tensors, weights: Weights = None) -> Tensor:
    """1 - cos over all parameters at once (Geiping et al. 2020, eq. 4): blind to the update's length.

    >>> cosine([torch.tensor([2.0, 0.0])], [torch.tensor([0.0, 3.0])]).item()
    1.0
    """
    # the floor keeps the derivative finite where a dead network simulates a zero gradient
    tiny = torch.finfo(observed[0].dtype).tiny
    own = _inner(simulated, simulated, weights)
    to_unit, observed_to_unit = (
        length.clamp_min(tiny).rsqrt() for length in (own, _inner(observed, observed, weights))
    )
    # Half the squared distance of two unit vectors is 1 - cos, but does not round to 0 below 1e-7: smooth
    # networks are far from solved there, and relative priors would vanish.
    apart = [
        (a * to_unit - b * observed_to_unit).square().sum() for a, b in zip(simulated, observed, strict=True)
    ]
    return _total(apart, weights) / 2 + torch.where(own > tiny, 0.0, 0.5)


_LOUD = 1e-5
"""Of the loudest layer's length: a layer below is rounding, as a key's bias, whose gradient is zero. Derived:
100 times float32's rounding."""


def cosine_by_layer(simulated: Tensors, observed: Tensors, weights: Weights = None) -> Tensor:
    """The mean over layers of 1 - cos: quiet ones count as much as loud ones (Balunovic et al. 2022b).

    >>> two = [torch.tensor([1.0, 0.0]), torch.tensor([9.0, 0.0])]
    >>> cosine_by_layer(two, [torch.tensor([0.0, 1.0]), torch.tensor([5.0, 0.0])]).item()
    0.5
    """
    lengths = torch.stack([b.norm() for b in observed])
    loud = (lengths > _LOUD * lengths.max()).to(lengths)
    terms = [on * cosine([a], [b]) for on, a, b in zip(loud, simulated, observed, strict=True)]
    return _total(terms, weights) / _total(list(loud), weights)


def euclidean(simulated: Tensors, observed: Tensors, weights: Weights = None) -> Tensor:
    """|simulated - observed|^2 / |observed|^2 (Zhu et al. 2019, eq. 4, up to the constant).

    >>> euclidean([torch.tensor([1.0, 2.0])], [torch.tensor([0.0, 2.0])]).item()
    0.25
    """
    difference = _total([(a - b).square().sum() for a, b in zip(simulated, observed, strict=True)], weights)
    return difference / _inner(observed, observed, weights)


def l1_l2(simulated: Tensors, observed: Tensors, weights: Weights = None, *, alpha: float = 0.1) -> Tensor:
    """Euclidean plus alpha |simulated - observed|_1 / |observed|_1 (TAG, Deng et al. 2021, eq. 4).

    >>> round(l1_l2([torch.tensor([1.0, 2.0])], [torch.tensor([0.0, 2.0])]).item(), 4)
    0.3
    """
    return euclidean(simulated, observed, weights) + alpha * absolute(simulated, observed, weights)


def absolute(simulated: Tensors, observed: Tensors, weights: Weights = None) -> Tensor:
    """|simulated - observed|_1 / |observed|_1: the faint neurons count as much as the loud ones.

    >>> absolute([torch.tensor([1.0, 2.0])], [torch.tensor([0.0, 2.0])]).item()
    0.5
    """
    difference = _total([(a - b).abs().sum() for a, b in zip(simulated, observed, strict=True)], weights)
    return difference / _total([b.abs().sum() for b in observed], weights)


def pull_of(distance: Distance, observed: Tensors, weights: Weights = None) -> Pull:
    """The distance to `observed` with its gradient: in closed form for the cosine, by autograd otherwise.

    >>> value, (gradient,) = pull_of(cosine, [torch.tensor([0.0, 3.0])])([torch.tensor([2.0, 0.0])])
    >>> value.item(), gradient.tolist()
    (1.0, [0.0, -0.5])
    """
    if distance is cosine:
        return _pull_of_cosine(observed, weights)

    def pull(simulated: Tensors) -> tuple[Tensor, Tensors]:
        leaves = [t.detach().requires_grad_() for t in simulated]
        with torch.enable_grad():
            value = distance(leaves, observed, weights)
            found = torch.autograd.grad(value, leaves, allow_unused=True)
        filled = [torch.zeros_like(t) if u is None else u for t, u in zip(leaves, found, strict=True)]
        return value.detach(), filled

    return pull


def _pull_of_cosine(observed: Tensors, weights: Weights) -> Pull:
    """With s = <g, o> and n = |g| |o|: u = d(1 - s/n)/dg = s/(n |g|^2) g - o/n, written over g.

    Its length gives the distance without cancellation: 1 - cos = |u|^2 |g|^2 / (1 + cos).
    """
    tiny = torch.finfo(observed[0].dtype).tiny
    length = _dot(observed, observed, weights)

    def pull(simulated: Tensors) -> tuple[Tensor, Tensors]:
        own, shared = _dot(simulated, simulated, weights), _dot(simulated, observed, weights)
        norm = (own.clamp_min(tiny) * length).clamp_min(tiny).sqrt()
        # the floors, see `cosine`, do not move with g
        stretch = float(shared / (norm * own)) if own > tiny else 0.0
        for g, o in zip(simulated, observed, strict=True):
            g.mul_(stretch).sub_(o, alpha=1 / float(norm))
        near = shared / norm
        value = _dot(simulated, simulated, weights) * own / (1 + near) if near > 0 else 1 - near
        if weights is not None:
            for g, share in zip(simulated, weights, strict=True):
                g.mul_(share)
        return value, simulated

    return pull


def _dot(a: Tensors, b: Tensors, weights: Weights) -> Tensor:
    """As `_inner`, without products in memory; not under vmap."""
    return _total([torch.dot(x.flatten(), y.flatten()) for x, y in zip(a, b, strict=True)], weights)


DISTANCES: dict[str, Distance] = {
    "cosine": cosine,
    "cosine_by_layer": cosine_by_layer,
    "euclidean": euclidean,
    "l1_l2": l1_l2,
    "absolute": absolute,
}


def equal_layers(count: int) -> Weights:
    """Every layer as it is."""
    return None


def early_layers(count: int) -> Weights:
    """Weights that fall linearly to 1 / count at the last layer: early ones hold more of the input (TAG).

    >>> early_layers(4)
    [1.0, 0.75, 0.5, 0.25]
    """
    return [1 - i / count for i in range(count)]


LAYER_WEIGHTS: dict[str, Callable[[int], Weights]] = {"equal": equal_layers, "early": early_layers}
