"""How attacks that match updates compare them when they know the defense: distances around distances."""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.attacks.inversion.distances import Distance, Tensors, Weights


def unchanged(distance: Distance) -> Distance:
    return distance


def where_sent(distance: Distance) -> Distance:
    """Only entries that are not zero count: pruned entries, columns and layers say nothing.

    >>> from seepage.attacks.inversion.distances import cosine
    >>> simulated, sent = [torch.tensor([3.0, 4.0])], [torch.tensor([6.0, 0.0])]
    >>> cosine(simulated, sent).item() > 0.3, where_sent(cosine)(simulated, sent, None).item()
    (True, 0.0)
    """

    def masked(simulated: Tensors, observed: Tensors, weights: Weights) -> Tensor:
        kept = [
            torch.where(sent != 0, own, torch.zeros_like(own))
            for own, sent in zip(simulated, observed, strict=True)
        ]
        return distance(kept, observed, weights)

    return masked


def by_sign(distance: Distance) -> Distance:
    """The simulated update is squashed to signs, softly, at the magnitude that was sent, then compared.

    s / sqrt(s^2 + m^2) with m the tensor's mean magnitude: its derivative is largest at entries whose sign
    is in doubt, where a step of the search can still change it.
    """

    def squashed(simulated: Tensors, observed: Tensors, weights: Weights) -> Tensor:
        soft = []
        for own, sent in zip(simulated, observed, strict=True):
            size = sent.abs().amax()
            soft.append(size * own / (own.square() + size.square()).clamp_min(1e-30).sqrt())
        signs = [sent.abs().amax() * sent.sign() for sent in observed]
        return distance(soft, signs, weights)

    return squashed
