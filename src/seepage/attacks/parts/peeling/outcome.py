"""What the residual says after the last round: which found examples are certified, and whether they are all.

An example is certified where no other explanation is within the rounding of the update. Nothing here sees the
truth.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.parts.peeling.codes import Code
from seepage.attacks.parts.peeling.grid import WORST_VALUE
from seepage.attacks.parts.peeling.loop import NOISE, Peeling
from seepage.attacks.parts.peeling.match import SAME_SCALE, Scale
from seepage.attacks.parts.peeling.residual import Found, row_norms
from seepage.attacks.parts.precision import EXACT

_STILL_EXPLAINED = 2e-3
"""Share of its contribution that may be left at an example's own row: beyond, the reading is contradicted."""

_MOST_CONTRADICTED = 0.25
"""Share of the readings on no alphabet that may be contradicted: where more are, what was taken away was not
there, and what was read afterwards from the rest is worth nothing."""


@dataclass(frozen=True)
class Outcome:
    """What the residual says after the last round."""

    certified: Tensor
    """(k,) bool: found examples that nothing contradicts, and that nothing else would explain as well."""
    contradicted: int
    """Found examples that what was read later contradicts."""
    alike: int
    """Those that may be means of copies that differ a little; see `counts_several_times`."""
    coarse: int
    """Those whose values the rounding of the update leaves open."""
    complete: bool
    """No active row holds anything beyond rounding."""
    open_rows: int
    """Active rows that still hold something."""
    residual: float
    """Norm of the layer's residual over that of its gradient."""
    agreement: float
    """Share of the rows in which certified examples fire that are explained."""

    @staticmethod
    def of(peeling: Peeling) -> Outcome:
        rows, found = peeling.remaining(), peeling.found
        if rows is None:
            nothing = torch.zeros(len(found), dtype=torch.bool, device=found.row.device)
            return Outcome(nothing, 0, 0, 0, complete=False, open_rows=0, residual=0.0, agreement=0.0)
        explained = (rows.norm <= NOISE * rows.weight_noise) & (rows.bias.abs() <= NOISE * rows.noise)
        norm = torch.zeros_like(peeling.residual.norm)
        clear = torch.zeros_like(peeling.active)
        norm[rows.index], clear[rows.index] = rows.norm, explained
        own = found.signals.gather(1, found.row.unsqueeze(1)).squeeze(1).abs() * found.features.norm(dim=1)
        stands = clear[found.row] | (norm[found.row] <= _STILL_EXPLAINED * own)
        doubtful = ~found.exact
        if int((doubtful & ~stands).sum()) > _MOST_CONTRADICTED * int(doubtful.sum()):
            stands = stands & found.exact
        coarse = doubtful & ~_accurate(found, peeling.code)
        alike = doubtful & counts_several_times(peeling.scale, peeling.expected)
        certified = stands & ~coarse & ~alike
        total = (peeling.residual.norm * abs(peeling.residual.factor)).double().norm()
        fires = (found.signals != 0).any(0)
        return Outcome(
            certified,
            contradicted=int((~stands).sum()),
            alike=int((stands & alike).sum()),
            coarse=int((stands & coarse & ~alike).sum()),
            complete=bool(explained.all()) and bool(certified.all()) and len(found) > 0,
            open_rows=int((~explained).sum()),
            residual=float(norm.double().norm() / total),
            agreement=float(clear[fires].double().mean()) if bool(fires.any()) else 0.0,
        )


def _accurate(found: Found, code: Code) -> Tensor:
    """(k,) bool: every value is known to within what counts as exact."""
    typical = row_norms(found.features) / found.features.shape[1] ** 0.5
    bounds = code.bounds()
    unit = (
        found.features.abs().amax(1) if bounds is None else (bounds[1] - bounds[0]).min().to(found.features)
    )
    accurate: Tensor = WORST_VALUE * found.error * typical <= EXACT * unit
    return accurate


def counts_several_times(scale: Scale | None, expected: float | None) -> bool:
    """Whether the update is larger than so many examples would make it if each were in it once.

    Then either fewer are in it than were declared, or each counts several times. Two that are nearly alike
    add up to twice their mean, to first order of their difference, which only an alphabet would show.

    >>> counts_several_times(Scale(10.0, 10, 9), 20.0), counts_several_times(Scale(215.6, None, 9), 8.0)
    (True, False)
    """
    return scale is not None and expected is not None and scale.kappa < (1 - SAME_SCALE) * expected
