"""What rows seem to show before it is certified, and how often that would fit by accident."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

_ACCIDENTS = 0.02
"""Expected number of accidental fits above which readings without other evidence are not believed."""


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

    def select(self, index: Tensor) -> Readings:
        return Readings(**{k: v[index] for k, v in vars(self).items()})

    def rescaled(self, kappa: float) -> Readings:
        """In units of a mean loss, once the common factor of the gradient is known."""
        return Readings(**(vars(self) | {"bias": self.bias * kappa, "noise": self.noise * kappa}))

    def __len__(self) -> int:
        return len(self.row)


def too_many_by_chance(predicted: Tensor, observed: Tensor, tolerance: Tensor, which: Tensor) -> bool:
    """Whether some label of some mixture would fit within the tolerance by accident.

    Counted a hundred times wider, where accidents are a hundred times as many.
    """
    narrow = (tolerance * predicted.abs().amax(1)).unsqueeze(1)[which]
    distance = (predicted - observed.unsqueeze(1)).abs()[which]
    accidents = ((distance > narrow) & (distance <= 100 * narrow)).sum()
    return int(accidents) / 100 > _ACCIDENTS
