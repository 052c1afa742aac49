"""Words that adapters read, where there are more tokens than the adapters' rank.

The gradient of LoRA's first matrix has as many rows as its rank, each a combination of the tokens' features.
With more tokens than that no token's features lie in the span of the rows, and no sentence can be told. But
the rows are made of nothing else, so that more of a true token's features lies there than of another's: of n
tokens and d features about rank / n of their square, and rank / d. What stands out from the whole vocabulary
is likely to be in the batch; it is no proof.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from seepage.attacks.text.growing import over_vocabulary
from seepage.core.types import InputSpec
from seepage.models.blocks import reading_points

_NORMAL = 1.4826
"""Standard deviations in a median distance from the median. Derived: that of a normal distribution."""


def likely_words(model: nn.Module, tensors: Mapping[str, Tensor], spec: InputSpec) -> Tensor | None:
    """(vocabulary,) bool: tokens that stand out at some position; None where nothing does, or can."""
    points, bases = [], []
    for point in reading_points(model, 0, tensors):
        gradient = point.gradient(tensors)
        if len(gradient) < gradient.shape[1]:  # LoRA's second matrix reads as few features as its rank
            points.append(point)
            bases.append(torch.linalg.svd(gradient, full_matrices=False)[2].float())
    if not points:
        return None

    def inside(read: list[Tensor]) -> Tensor:
        shares = []
        for features, basis in zip(read, bases, strict=True):
            own = features[:, -1] - features[:, -1].mean(dim=0)  # what all tokens share tells none apart
            lengths = own.norm(dim=1).clamp_min(torch.finfo(own.dtype).tiny)
            shares.append((own @ basis.T.to(own)).norm(dim=1) / lengths)
        return torch.stack(shares).mean(dim=0)

    vocabulary, length = int(spec.vocabulary or 0), spec.shape[0]
    striking = torch.zeros(vocabulary, device=next(model.parameters()).device)
    for share in over_vocabulary(model, points, length, vocabulary, inside):
        apart = share - share.median()
        striking = torch.maximum(striking, apart / (_NORMAL * apart.abs().median()))
    # as far out as one of all these comparisons is by chance
    chance = torch.tensor(1 - 1 / (vocabulary * length), dtype=torch.float64)
    found: Tensor = striking > float(torch.special.ndtri(chance))
    return found.cpu() if bool(found.any()) else None
