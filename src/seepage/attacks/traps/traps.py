"""Rows of a dense layer that fire rarely (Boenisch et al. 2021, Section 6), and their place in a model.

Rows are drawn for inputs in [0, 1], as the paper assumes. Normalisation, another value range and the gains
of a pass-through are folded into weights and bias, so that the trap acts on the raw values all the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.attacks.traps.carried import Carried, Hiding
from seepage.core.types import Knowledge

USUAL_SIGMA = 0.5
"""Spread of the crafted weights. Paper: Boenisch et al. 2021, Section 8.1."""

_LEAST_GAP = 1e-6
"""Smallest 1 - s, where it is counted in ratios. Derived: about ten last digits of float32."""


@dataclass(frozen=True)
class Rows:
    """weight (N, d) and bias (N,) of a layer that would read values in [0, 1]."""

    weight: Tensor
    bias: Tensor

    def scaled(self, scale: float, until: float | None = None) -> Rows:
        """Positive weights times s: Algorithm 1, line 4, for rows drawn with s = 1.

        until: s goes from `scale` to this over the rows, 1 - s in even ratios. Dark and flat examples fire
        only rows with a large s, which the others share; rows with a small s part those.
        """
        s = torch.full((len(self.weight), 1), scale)
        if until is not None and until != scale:
            first, last = (math.log(max(1 - v, _LEAST_GAP)) for v in (scale, until))
            s = 1 - torch.linspace(first, last, len(s)).exp().unsqueeze(1)
        return Rows(torch.where(self.weight > 0, s * self.weight, self.weight), self.bias)


def size_of_weights(known: Knowledge) -> float:
    """What crafted weights and biases of a layer are multiplied by; who fires it does not change.

    The difference of two weights has an error of the weights' last digit, divided by the learning rate: where
    clients send weights, the same layer times 2^-6 shows 64 times as much of the gradient.
    """
    sends_weights = known.local is not None and known.local.algorithm == "fedavg"
    return 2.0**-6 if sends_weights else 1.0


def draw_trap_rows(
    count: int, length: int, *, scale: float, sigma: float, generator: torch.Generator
) -> Rows:
    """Algorithm 1, row by row: a random half negative, the other half -s times the same samples.

    The samples are half-normal, i.e. strictly negative; one weight of an odd row stays zero.

    >>> rows = draw_trap_rows(3, 6, scale=0.5, sigma=1.0, generator=torch.Generator().manual_seed(0))
    >>> negative, positive = rows.weight.clamp_max(0).sum(dim=1), rows.weight.clamp_min(0).sum(dim=1)
    >>> bool(((rows.weight < 0).sum(dim=1) == 3).all()), torch.allclose(positive, -0.5 * negative)
    (True, True)
    """
    half = length // 2
    weight = torch.zeros(count, length)
    smallest = torch.finfo(weight.dtype).tiny
    samples = -(sigma * torch.randn(count, half, generator=generator)).abs().clamp_min_(smallest)
    for row, negatives in zip(weight, samples, strict=True):
        places = torch.randperm(length, generator=generator)  # shuffles both halves at once
        row[places[:half]] = negatives
        row[places[half : 2 * half]] = -scale * negatives
    return Rows(weight, torch.zeros(count))


def draw_gaussian_rows(count: int, length: int, *, sigma: float, generator: torch.Generator) -> Rows:
    """Rows as an honest Gaussian initialisation has them; their biases are still to be chosen."""
    return Rows(sigma * torch.randn(count, length, generator=generator), torch.zeros(count))


@torch.no_grad()
def install(rows: Rows, layer: nn.Linear, carried: Carried, hiding: Hiding) -> None:
    """Write the rows into `layer` for what arrives there: u = (feature - least) / (most - least)."""
    span = (carried.most - carried.least).to(layer.weight)
    least = carried.least.to(layer.weight)
    weight = rows.weight.to(layer.weight) / span  # (N, d)
    layer.bias.copy_(rows.bias.to(weight) - weight @ least)
    if weight.shape == layer.weight.shape and torch.equal(
        carried.where, torch.arange(len(span), device=carried.where.device)
    ):
        layer.weight.copy_(weight)
        return
    # Features that hold no data get no say, unless they are silent and may look random.
    layer.weight.zero_()
    if hiding.on:
        mute = carried.silent.nonzero().squeeze(1)
        layer.weight[:, mute] = hiding.noise((len(weight), len(mute)), float(weight.std()), layer.weight)
    layer.weight[:, carried.where] = weight


def lonely(active: Tensor) -> Tensor:
    """(n,) bool: examples that are alone at some neuron, from the activation pattern (n, N).

    >>> lonely(torch.tensor([[1, 1, 0], [0, 1, 0]]).bool()).tolist()
    [True, False]
    """
    alone = active.sum(dim=0) == 1  # (N,)
    return active[:, alone].any(dim=1)


def peelable(active: Tensor) -> Tensor:
    """(n,) bool: examples that are alone at some neuron once those found before are taken away.

    >>> peelable(torch.tensor([[1, 1, 0], [0, 1, 0], [0, 0, 0]]).bool()).tolist()
    [True, True, False]
    """
    left, found = active.clone(), torch.zeros(len(active), dtype=torch.bool, device=active.device)
    while bool((new := lonely(left)).any()):
        found |= new
        left[new] = False
    return found


def draw_shares(
    count: int, firing: tuple[float, float], batch_size: int, generator: torch.Generator
) -> Tensor:
    """(N,) share of inputs that shall fire each neuron: log-uniform between two numbers of examples."""
    low, high = (math.log(edge / batch_size) for edge in firing)
    return (low + (high - low) * torch.rand(count, generator=generator)).exp().clamp_max(0.5)
