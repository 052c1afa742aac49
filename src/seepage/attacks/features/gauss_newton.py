"""The picture whose features are given: Gauss and Newton's method under a belief about pictures.

For each of k pictures by itself, minimise |F(x) - h|^2 / |h|^2 + weight |z|^2 over x = A z (`spectrum`). F is
linearised where the search stands; conjugate gradients solve the linear problem, all pictures in one pass.
The weight of the belief falls from step to step: first the large shapes, then what the features demand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.features.spectrum import Spectrum

FIRST_WEIGHT, LAST_WEIGHT = 1e-3, 1e-7
"""Of the belief, at the first step and the last. |z|^2 is about the number of pixels, so that the first lets
features be off by all of |h|, and the last by 1 %. Tested:
test_constants_of_the_search_for_pictures_lie_on_a_plateau."""
INNER = 8
"""Iterations of conjugate gradients in a step. Tested:
test_constants_of_the_search_for_pictures_lie_on_a_plateau."""
_SHORTER = (1.0, 0.5, 0.25, 0.1)
"""Shares of a step that are tried: beyond the kinks of a ReLU network a whole one may lead uphill. Cost: a
pass each; the best of them is taken."""

Front = Callable[[Tensor], Tensor]
"""(k, *shape) pictures in model units to (k, m) features, each by itself."""


@dataclass(frozen=True)
class Standing:
    """Where the search stands after a step."""

    pictures: Tensor
    """(k, *shape) in model units."""
    off: Tensor
    """(k,) |F(x) - h|^2 / |h|^2."""


def approach(
    front: Front, features: Tensor, spectrum: Spectrum, shape: tuple[int, ...], steps: int
) -> Iterator[Standing]:
    """One standing after each step, the first before any: at the centre of all pictures."""
    z = features.new_zeros(len(features), *shape)
    size = features.square().sum(1).clamp_min(torch.finfo(features.dtype).tiny)  # (k,)
    for step in range(steps):
        yield _standing(front, features, size, spectrum, z)
        weight = FIRST_WEIGHT * (LAST_WEIGHT / FIRST_WEIGHT) ** (step / max(1, steps - 1))
        towards = _direction(front, features, spectrum, z, weight * size)
        z = _best(front, features, size, spectrum, z, towards, weight)
    yield _standing(front, features, size, spectrum, z)


def _standing(front: Front, features: Tensor, size: Tensor, spectrum: Spectrum, z: Tensor) -> Standing:
    pictures = spectrum.picture(z)
    with torch.no_grad():
        return Standing(pictures, (front(pictures) - features).square().sum(1) / size)


def _direction(front: Front, features: Tensor, spectrum: Spectrum, z: Tensor, ridge: Tensor) -> Tensor:
    """d that minimises |J A d - (h - F)|^2 + ridge |z + d|^2, nearly: (k, *shape)."""
    with torch.enable_grad():
        x = spectrum.picture(z).detach().requires_grad_()
        y = front(x)
        # J v is the derivative by u of <J^T u, v>: reverse mode twice, for not all layers have a forward mode
        u = torch.zeros_like(y, requires_grad=True)
        (back,) = torch.autograd.grad(y, x, u, create_graph=True, materialize_grads=True)
    flat = not back.requires_grad  # nothing of the input reaches the layer

    def there(d: Tensor) -> Tensor:
        if flat:
            return torch.zeros_like(y)
        return torch.autograd.grad(back, u, spectrum.change(d), retain_graph=True, materialize_grads=True)[0]

    def and_back(v: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad(y, x, v, retain_graph=True, materialize_grads=True)
        return spectrum.adjoint(gradient)

    weight = _each(ridge, z)
    right = and_back((features - y).detach()) - weight * z
    return conjugate_gradients(lambda d: and_back(there(d)) + weight * d, right, iterations=INNER)


def conjugate_gradients(apply: Callable[[Tensor], Tensor], right: Tensor, *, iterations: int) -> Tensor:
    """Solves k symmetric positive systems at once, each (1, ...) slice its own (Hestenes and Stiefel 1952).

    >>> conjugate_gradients(lambda v: 2.0 * v, torch.tensor([[2.0, 4.0], [0.0, 0.0]]), iterations=1)
    tensor([[1., 2.],
            [0., 0.]])
    """
    solution, left, along = torch.zeros_like(right), right, right
    length = _dot(left, left)
    tiny = torch.finfo(right.dtype).tiny
    for _ in range(iterations):
        image = apply(along)
        reach = _each(length / _dot(along, image).clamp_min(tiny), along)
        solution, left = solution + reach * along, left - reach * image
        before, length = length, _dot(left, left)
        along = left + _each(length / before.clamp_min(tiny), along) * along
    return solution


def _best(
    front: Front,
    features: Tensor,
    size: Tensor,
    spectrum: Spectrum,
    z: Tensor,
    towards: Tensor,
    weight: float,
) -> Tensor:
    """The longest-tried share of the step that leads downhill most, for each picture; else no step."""

    def objective(at: Tensor) -> Tensor:
        return _standing(front, features, size, spectrum, at).off + weight * _dot(at, at)

    best, lowest = z, objective(z)
    for share in _SHORTER:
        tried = z + share * towards
        value = objective(tried)
        better = value < lowest  # a NaN is never lower
        best = torch.where(_each(better, z), tried, best)
        lowest = torch.where(better, value, lowest)
    return best


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).flatten(1).sum(1)


def _each(values: Tensor, like: Tensor) -> Tensor:
    """(k,) to (k, 1, ...)."""
    return values.reshape(-1, *(1,) * (like.dim() - 1))
