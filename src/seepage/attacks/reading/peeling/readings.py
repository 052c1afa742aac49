"""What rows seem to show before it is certified, and how often that would fit by accident."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.reading.peeling.tolerances import ACCIDENTS, PROOF


@dataclass(frozen=True)
class Readings:
    """Distinct examples that some rows seem to show."""

    row: Tensor
    support: Tensor
    bias: Tensor
    noise: Tensor
    error: Tensor
    """(k,) relative, expected."""
    features: Tensor
    exact: Tensor
    undecided: Tensor
    spoiled: Tensor
    """(k,) bool: as `codes.Snapped` has it."""
    moved: Tensor
    """(k,) relative distance from what was read to the point of the alphabet that took its place."""
    evidence: Tensor
    """(k,) that it is the product of one example alone, as `products.joint_evidence` has it; 0: none."""

    @staticmethod
    def none(like: Tensor) -> Readings:
        """No reading of a gradient (N, m)."""
        real = like.new_zeros(0, dtype=torch.float64)
        whole = torch.zeros(0, dtype=torch.long, device=like.device)
        return Readings(
            row=whole,
            support=whole,
            bias=real,
            noise=real,
            error=real,
            features=like.new_zeros(0, like.shape[1]),
            exact=whole.bool(),
            undecided=whole.bool(),
            spoiled=whole.bool(),
            moved=real,
            evidence=real,
        )

    @staticmethod
    def joined(parts: Sequence[Readings]) -> Readings:
        return Readings(**{k: torch.cat([getattr(p, k) for p in parts]) for k in vars(parts[0])})

    def select(self, index: Tensor) -> Readings:
        if torch.equal(index, torch.arange(len(self), device=index.device)):
            return self  # features are as many values as the gradient has: no second copy
        return Readings(**{k: v[index] for k, v in vars(self).items()})

    def on_alphabet(self) -> Readings:
        """Where the data are written in an alphabet, what is plainly beside it is a mixture."""
        return self.select((self.exact | self.undecided).nonzero().squeeze(1))

    @property
    def proven(self) -> Tensor:
        """(k,) bool: no other example is in the row."""
        return self.evidence <= PROOF

    @property
    def evident(self) -> Tensor:
        """(k,) bool: something besides its label speaks for the reading."""
        return self.exact | self.proven | (self.support > 1)

    def rescaled(self, kappa: float) -> Readings:
        """In units of a mean loss, once the common factor of the gradient is known."""
        return Readings(**(vars(self) | {"bias": self.bias * kappa, "noise": self.noise * kappa}))

    def __len__(self) -> int:
        return len(self.row)


def too_many_by_chance(predicted: Tensor, observed: Tensor, tolerance: float, which: Tensor) -> bool:
    """Whether some label of some mixture would fit within the tolerance by accident.

    Counted a hundred times wider, where accidents are a hundred times as many.
    """
    narrow = (tolerance * predicted.abs().amax(1)).unsqueeze(1)[which]
    distance = (predicted - observed.unsqueeze(1)).abs()[which]
    accidents = ((distance > narrow) & (distance <= 100 * narrow)).sum()
    return int(accidents) / 100 > ACCIDENTS


def improbable(tolerance: float, trials: float) -> float:
    """The tolerance, or the smaller one within which none of so many wrong signals would be by accident.

    trials: mixtures on the alphabet times labels. A signal that has nothing to do with the observed one is
    within t of it, as a share of the largest, with a probability of about 2 t.

    >>> improbable(1e-3, 0.1), improbable(1e-3, 100.0)
    (0.001, 0.0001)
    """
    return min(tolerance, ACCIDENTS / (2 * trials)) if trials > 0 else tolerance
