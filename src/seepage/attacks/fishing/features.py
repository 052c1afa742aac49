"""How a class's features are spread, from clients that are seen once (Wen et al. 2022, Section 3.3).

Class fishing shows the mean feature of a class at each client, and over how many examples. The paper's
estimate of the spread is wrong for unequal counts (1.73 times too large for 1..8); the one used here is
unbiased: Var(mean of s examples) = sigma^2 / s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.core.errors import NotApplicable


@dataclass(frozen=True)
class FeatureEstimate:
    """(m,) each: mean and standard deviation of single examples, and how far from normal they look."""

    mean: Tensor
    std: Tensor
    ks: Tensor
    images: float
    """Mean number of examples of the class at a client that holds any."""


def estimate_features(means: Tensor, counts: Tensor) -> FeatureEstimate:
    """From clients' mean features (N, m) over `counts` (N,) examples each.

    mu = sum s_i f_i / sum s_i; sigma^2 = sum s_i (f_i - mu)^2 / (N - 1).

    >>> found = estimate_features(torch.tensor([[1.0], [3.0]]), torch.tensor([2.0, 2.0]))
    >>> found.mean.item(), found.std.item()
    (2.0, 2.0)
    """
    if len(means) < 2:
        raise NotApplicable(
            f"the target class was met at {len(means)} client(s), and a feature's spread cannot be estimated "
            "from fewer than two: ask more clients, or choose a more common class."
        )
    weights = counts.to(means).unsqueeze(1)  # (N, 1)
    mean = (weights * means).sum(dim=0) / weights.sum()
    std = ((weights * (means - mean).square()).sum(dim=0) / (len(means) - 1)).sqrt()
    standard = weights.sqrt() * (means - mean) / std.clamp_min(torch.finfo(means.dtype).tiny)
    return FeatureEstimate(mean, std, ks_statistic(standard), float(counts.double().mean()))


def ks_statistic(standard: Tensor) -> Tensor:
    """(m,) largest distance between each column's empirical distribution and the standard normal one."""
    ordered = standard.sort(dim=0).values  # (N, m)
    normal = torch.special.ndtr(ordered)
    steps = torch.arange(len(ordered) + 1).to(ordered).unsqueeze(1) / len(ordered)
    above, below = (steps[1:] - normal).amax(dim=0), (normal - steps[:-1]).amax(dim=0)
    return torch.maximum(above, below)


FeatureChoice = Callable[[FeatureEstimate, torch.Generator], int]

FEATURE_CHOICES: dict[str, FeatureChoice] = {
    "ks": lambda found, _: int(found.ks.argmin()),
    "highest_ks": lambda found, _: int(found.ks.argmax()),
    "lowest_mean": lambda found, _: int(found.mean.argmin()),
    "highest_mean": lambda found, _: int(found.mean.argmax()),
    "lowest_std": lambda found, _: int(found.std.argmin()),
    "highest_std": lambda found, _: int(found.std.argmax()),
    "random": lambda found, generator: int(torch.randint(len(found.mean), (1,), generator=generator)),
}
"""Paper: Wen et al. 2022, Table 1: which feature is cut. ks: the one that looks most normal."""


def cut_at_mass(found: FeatureEstimate, feature: int, mass: float) -> float:
    """The value below which a share `mass` of single examples is expected; infinite for all of them."""
    if mass >= 1:
        return torch.inf
    quantile = torch.special.ndtri(torch.tensor(mass, dtype=torch.float64))
    return float(found.mean[feature].double() + found.std[feature].double() * quantile)
