"""All u examples from their patterns, and how far rounding may have moved each: X = A V^T.

With every c known, A = C^-T. The network then says to the last neuron which rows each example leaves off, and
c is the null vector of those rows of U S, each weighted by its noise: the maximum-likelihood estimate.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.reading.peeling.tolerances import BEYOND
from seepage.attacks.reading.unmixing.mixture import Mixture
from seepage.attacks.reading.unmixing.polish import fires, unit
from seepage.models.signals import ROUNDING

_MARGINS = (1e-2, 1e-3, 1e-4)
"""Activations, in root mean squares of an example's, that are too near 0 to say which side they are on: as
exact as A is, one round after the other. No plateau test yet."""


@dataclass(frozen=True)
class Unmixed:
    """The u examples that a residual of rank u is made of, up to a check by the caller."""

    features: Tensor
    """(u, m)"""
    signals: Tensor
    """(u, r) at the rows given."""
    error: Tensor
    """(u,) relative error of `features`, to first order and rather too large."""


def assemble(mixture: Mixture, q: Tensor, dtype: torch.dtype) -> Unmixed | None:
    """The examples with backward signals U q for q (u, u); None where they are no examples together."""
    c = q / mixture.sizes
    least = torch.finfo(q.dtype).tiny
    weighted = mixture.directions * mixture.sizes / mixture.noise.clamp_min(least).unsqueeze(1)
    a = _coefficients(c, mixture.ones)
    values = vectors = torch.empty(0)
    for margin in _MARGINS:
        if a is None:
            return None
        activation = a @ mixture.gates.T  # (u, r)
        off = activation < -margin * activation.square().mean(1, keepdim=True).sqrt()
        if mixture.moved:  # a neuron may have been on in a step between, which the signal itself shows
            near = unit(c * mixture.sizes)
            off &= ~mixture.swings(a) & ~fires(mixture.directions, near, mixture.floor(near))
        if int(off.sum(1).min()) < mixture.unknown:
            return None
        moments = (weighted.T.unsqueeze(0) * off.to(weighted).unsqueeze(1)) @ weighted
        values, vectors = torch.linalg.eigh(moments)
        c = vectors[:, :, 0]
        a = _coefficients(c, mixture.ones)
    if a is None:
        return None
    level = torch.linalg.solve(c.T, mixture.ones.unsqueeze(1))  # U S = D^T A^T fixes the size of D
    signals = (c * level) @ (mixture.directions * mixture.sizes).T
    return Unmixed(mixture.examples(a).to(dtype), signals.to(dtype), _error(a, level, values, vectors))


def _coefficients(c: Tensor, ones: Tensor) -> Tensor | None:
    """(u, u) rows a_b with a_b c_b' = 0 for all others and a_b ones = 1."""
    inverse, failed = torch.linalg.inv_ex(c.T)
    level = inverse @ ones
    small = 1e-12 * inverse.norm(dim=1) * ones.norm()
    if bool(failed) or bool((level.abs() <= small).any()) or not bool(inverse.isfinite().all()):
        return None
    a: Tensor = inverse / level.unsqueeze(1)
    return a


def _error(a: Tensor, level: Tensor, values: Tensor, vectors: Tensor) -> Tensor:
    """(u,): da_b = -sum_b' a_b' (dc_b' a_b), where dc_b' has the inverse of its moments as covariance.

    Two examples that switch the same neurons leave a second null vector, and the error is unbounded: their
    span is known, and not they. Rounding is not quite white, hence `BEYOND`: of a trained
    network's faintest examples values were off by 20 times this.
    """
    total = torch.zeros(len(a), dtype=a.dtype, device=a.device)
    size = level.squeeze(1).abs() * a.norm(dim=1)
    for j in range(len(a)):
        along = a @ vectors[j][:, 1:]  # (u, u - 1)
        variance = (along.square() / values[j, 1:].clamp_min(1e-30)).sum(1)
        total += variance * size[j].square()
    relative: Tensor = (BEYOND * total.sqrt() / a.norm(dim=1)).clamp_min(ROUNDING)
    return relative
