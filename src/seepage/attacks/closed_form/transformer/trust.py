"""What natural pictures look like beforehand, and whether a solution of patches can be vouched for."""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.attacks.closed_form.transformer.solve import Estimate
from seepage.attacks.inversion.problem import SPREAD_OF_A_RANGE
from seepage.core.types import Knowledge
from seepage.models.patches import PatchGrid

SURE = 1e-3
"""Largest estimated error of a claimed pixel, in standard deviations of natural images (a quarter range).
Derived: a quarter of `precision.EXACT`, for it is an estimate."""
FLOAT_NOISE = 2.0**8
"""Machine epsilons of relative residual that rounding on the client's side leaves (measured: up to 60).
Tested: test_constants_of_closed_forms_lie_on_a_plateau."""


def natural_patches(grid: PatchGrid, known: Knowledge) -> tuple[Tensor, Tensor]:
    """Middle and spread of natural pictures, in model units, for each value of a patch."""
    spec = known.input
    ones = torch.ones(1, *spec.shape, dtype=torch.float64)
    if spec.value_range is None or known.normalised:
        return torch.zeros_like(grid.to_patches(ones)[0]), grid.to_patches(ones)[0]
    low, high = spec.value_range
    middle = spec.to_model(ones * (low + high) / 2)
    above = spec.to_model(ones * ((low + high) / 2 + SPREAD_OF_A_RANGE * (high - low)))
    return grid.to_patches(middle)[0], grid.to_patches(above - middle)[0]


def raw_picture(grid: PatchGrid, patches: Tensor, known: Knowledge, like: Tensor) -> Tensor:
    """(1, C, H, W) in raw units, within the value range where it is known."""
    values = known.input.to_raw(grid.to_picture(patches).to(like))
    if known.input.value_range is not None and not known.normalised:
        values = values.clamp(*known.input.value_range)
    return values


def unsure(found: Estimate, *, rounding: float) -> tuple[str, ...]:
    """Why a solution is not claimed, in one sentence; nothing where it is."""
    if not found.redundant:
        return ("There are no more equations than unknowns to check the candidate by: it is not claimed.",)
    if found.residual > FLOAT_NOISE * rounding:
        return (
            f"The residual {found.residual:.1e} is more than rounding leaves, so the update is no plain "
            "gradient of one example (noise or another defense changed it): the candidate is not claimed.",
        )
    if float(found.deviation.max()) > SURE:
        return (
            "The equations hold, but rounding or lost dimensions leave some pixels too uncertain to vouch "
            "for an exact copy (they were moved towards mid-range by as much), so it is not claimed.",
        )
    return ()
