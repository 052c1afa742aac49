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
"""(simulated, observed, weight of each layer or None) to a scalar, 0 where the two agree."""


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
    norms = _inner(simulated, simulated, weights).clamp_min(tiny) * _inner(observed, observed, weights)
    return 1 - _inner(simulated, observed, weights) / norms.clamp_min(tiny).sqrt()


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
    difference = _total([(a - b).abs().sum() for a, b in zip(simulated, observed, strict=True)], weights)
    length = _total([b.abs().sum() for b in observed], weights)
    return euclidean(simulated, observed, weights) + alpha * difference / length


DISTANCES: dict[str, Distance] = {"cosine": cosine, "euclidean": euclidean, "l1_l2": l1_l2}


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
