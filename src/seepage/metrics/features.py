"""How near reconstructed features are to a layer's true inputs, where values have no fixed range."""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.metrics.pairs import by_examples


def relative_error(recon: Tensor, truth: Tensor) -> Tensor:
    """(n,): L2 norm of the error over the L2 norm of the truth. A guess of all zeros scores 1.

    True features that are all zero have no scale: they score 0 when met exactly, 1 otherwise.

    >>> relative_error(torch.tensor([[3.0, 0.0]]), torch.tensor([[3.0, 4.0]])).tolist()
    [0.8]
    """

    def score(r: Tensor, t: Tensor) -> Tensor:
        error, norm = (r - t).flatten(1).norm(dim=1), t.flatten(1).norm(dim=1)
        return torch.where(
            norm > 0, error / norm.where(norm > 0, torch.ones_like(norm)), (error > 0).to(error)
        )

    return by_examples(score, recon, truth)


def cosine(recon: Tensor, truth: Tensor) -> Tensor:
    """(n,): cosine of the angle to the truth, in [-1, 1], blind to scale.

    A zero vector has no direction: it scores 1 against another zero vector and 0 against anything else.

    >>> cosine(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]])).tolist()
    [1.0, 0.0]
    """

    def score(r: Tensor, t: Tensor) -> Tensor:
        r, t = r.flatten(1), t.flatten(1)
        r_norm, t_norm = r.norm(dim=1, keepdim=True), t.norm(dim=1, keepdim=True)
        # dividing first keeps tiny vectors from underflowing in the product
        dot = (r / r_norm.where(r_norm > 0, 1.0) * (t / t_norm.where(t_norm > 0, 1.0))).sum(1)
        both_zero = ((r_norm == 0) & (t_norm == 0)).squeeze(1)
        return torch.where(both_zero, 1.0, dot).clamp(-1, 1)

    return by_examples(score, recon, truth)
