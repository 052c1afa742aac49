"""What the residual says after the last round: which found examples are certified, and whether they are all.

An example is certified where no other explanation is within the rounding of the update. Nothing here sees the
truth.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.reading.peeling.codes import Code
from seepage.attacks.reading.peeling.loop import Peeling
from seepage.attacks.reading.peeling.residual import Found, row_norms
from seepage.attacks.reading.peeling.tolerances import BEYOND, FEW, PROOF, SURE
from seepage.attacks.reading.products import each_counts_once
from seepage.attacks.reading.scale import as_declared, counts_several_times
from seepage.models.precision import EXACT


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
        explained = (rows.norm <= BEYOND * rows.weight_noise) & (rows.bias.abs() <= BEYOND * rows.noise)
        norm = torch.zeros_like(peeling.residual.norm)
        clear = torch.zeros_like(peeling.active)
        norm[rows.index], clear[rows.index] = rows.norm, explained
        own = found.signals.gather(1, found.row.unsqueeze(1)).squeeze(1).abs() * found.features.norm(dim=1)
        # A value read to `EXACT`, and what was taken away before it, leave as much of the example each.
        stands = clear[found.row] | (norm[found.row] <= 2 * EXACT * own)
        doubtful = ~found.exact
        # Where more than a few are contradicted, what was taken away was not there, and what was read
        # afterwards from the rest is worth nothing.
        if int((doubtful & ~stands).sum()) > FEW * int(doubtful.sum()):
            stands = stands & found.exact
        coarse = doubtful & ~_accurate(found, peeling.code)
        alike = doubtful & _may_count_several(peeling)
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


def _may_count_several(peeling: Peeling) -> bool:
    """Whether the update may hold several that are nearly alike wherever one was found.

    Where none has a row to itself, or the update was changed since it was computed, the declared number is
    taken at its word; see `each_counts_once` for the others.
    """
    scale, expected, found = peeling.scale, peeling.expected, peeling.found
    declared = as_declared(scale, expected)
    plain = found.round == 0
    if peeling.residual.computed is None or not bool(plain.any()):
        return not declared
    # What lies on an alphabet is no mean of several.
    evidence = torch.where(found.exact, PROOF, found.evidence)[plain]
    return counts_several_times(scale, expected) or not each_counts_once(evidence, declared=declared)


def _accurate(found: Found, code: Code) -> Tensor:
    """(k,) bool: every value is known to within what counts as exact."""
    typical = row_norms(found.features) / found.features.shape[1] ** 0.5
    bounds = code.bounds()
    unit = (
        found.features.abs().amax(1) if bounds is None else (bounds[1] - bounds[0]).min().to(found.features)
    )
    accurate: Tensor = SURE * found.error * typical <= EXACT * unit
    return accurate
