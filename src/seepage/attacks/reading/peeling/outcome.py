"""What the residual says after the last round: which found examples are certified, and whether they are all.

An example is certified where no other explanation is within the rounding of the update. Nothing here sees the
truth.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.reading.cut import hidden_values, smallest_sent
from seepage.attacks.reading.one_each import Counted, OneEach, Received, one_each, step_of
from seepage.attacks.reading.peeling.codes import Code, TokenCode
from seepage.attacks.reading.peeling.loop import Peeling
from seepage.attacks.reading.peeling.residual import Found, row_norms
from seepage.attacks.reading.peeling.tolerances import BEYOND, FEW, SURE
from seepage.models.precision import EXACT
from seepage.protocol.losses import OF_NUMBERS


@dataclass(frozen=True)
class Outcome:
    """What the residual says after the last round."""

    certified: Tensor
    """(k,) bool: found examples that nothing contradicts, and that nothing else would explain as well."""
    read: Tensor
    """(k,) bool: those, and what would be certified if near copies had been ruled out."""
    contradicted: int
    """Found examples that what was read later contradicts."""
    alike: int
    """Those that may be means of copies that differ a little; see `one_each`."""
    coarse: int
    """Those whose values the rounding of the update leaves open."""
    cut: int
    """Those that may lack values which were too small to be sent; see `cut`."""
    complete: bool
    """No active row holds anything beyond rounding."""
    open_rows: int
    """Active rows that still hold something."""
    residual: float
    """Norm of the layer's residual over that of its gradient."""
    agreement: float
    """Share of the rows in which certified examples fire that are explained."""
    if_declared: bool = False
    """As `Reconstruction.if_declared`."""

    @staticmethod
    def of(peeling: Peeling) -> Outcome:
        rows, found = peeling.remaining(), peeling.found
        if rows is None:
            nothing = torch.zeros(len(found), dtype=torch.bool, device=found.row.device)
            return Outcome(
                nothing, nothing, 0, 0, 0, 0, complete=False, open_rows=0, residual=0.0, agreement=0.0
            )
        explained = (rows.norm <= BEYOND * rows.weight_noise) & (rows.bias.abs() <= BEYOND * rows.noise)
        norm = torch.zeros_like(peeling.residual.norm)
        clear = torch.zeros_like(peeling.active)
        norm[rows.index], clear[rows.index] = rows.norm, explained
        own = found.signals.gather(1, found.row.unsqueeze(1)).squeeze(1).abs() * found.features.norm(dim=1)
        # A value read to `EXACT`, and what was taken away before it, leave as much of the example each.
        stands = clear[found.row] | (norm[found.row] <= 2 * EXACT * own)
        # What was told apart from others may share every row with those that were not.
        stands |= found.shared & found.exact
        doubtful = ~found.exact
        # Where more than a few are contradicted, what was taken away was not there, and what was read
        # afterwards from the rest is worth nothing.
        if int((doubtful & ~stands).sum()) > FEW * int(doubtful.sum()):
            stands = stands & found.exact
        coarse = doubtful & ~_accurate(found, peeling.code)
        known = _one_each(peeling)
        alike, cut = ~known.single, _cut(peeling)
        certified = stands & ~coarse & ~alike & ~cut
        total = (peeling.residual.norm * abs(peeling.residual.factor)).double().norm()
        fires = (found.signals != 0).any(0)
        return Outcome(
            certified,
            stands & ~coarse,
            contradicted=int((~stands).sum()),
            alike=int((stands & alike).sum()),
            coarse=int((stands & coarse & ~alike).sum()),
            cut=int((stands & cut & ~coarse & ~alike).sum()),
            complete=bool(explained.all()) and bool(certified.all()) and len(found) > 0,
            open_rows=int((~explained).sum()),
            residual=float(norm.double().norm() / total),
            agreement=float(clear[fires].double().mean()) if bool(fires.any()) else 0.0,
            if_declared=known.if_declared and bool(certified.any()),
        )


def _one_each(peeling: Peeling) -> OneEach:
    """Which of the found examples are no means of several. A token is none."""
    found = peeling.found
    if peeling.signals.loss in OF_NUMBERS:  # how often each was counted, nothing says
        return OneEach(torch.zeros_like(found.exact), if_declared=False)
    if isinstance(peeling.code, TokenCode) or not len(found):
        return OneEach(found.exact | bool(len(found)), if_declared=False)
    counted = Counted(
        features=found.features,
        labels=found.labels,
        row=found.row,
        on_grid=found.exact,
        lone=found.round == 0,
        evidence=found.evidence,
        times=found.times,
        step=step_of(_unit(found, peeling.code), found.exact),
    )
    received = Received(
        scale=peeling.scale,
        expected=peeling.expected,
        summed=peeling.signals.loss.endswith("_sum"),
        computed=peeling.residual.computed,
        fine=peeling.residual.fine,
        signals=peeling.signals,
        span=lambda: peeling.certifier.spanned(peeling.active),
        left=lambda rows: peeling.residual.weights(rows, found),
    )
    return one_each(counted, received)


def _cut(peeling: Peeling) -> Tensor:
    """(k,) bool: a value that is not 0 may have been sent as 0 where the example was read."""
    found, residual = peeling.found, peeling.residual
    smallest = smallest_sent(residual.weight, residual.bias) * abs(residual.factor)
    own = found.signals.gather(1, found.row.unsqueeze(1)).squeeze(1)
    hidden = hidden_values(residual.weight, smallest, found.row, own)
    return hidden > step_of(_unit(found, peeling.code), found.exact)


def _accurate(found: Found, code: Code) -> Tensor:
    """(k,) bool: every value is known to within what counts as exact."""
    typical = row_norms(found.features) / found.features.shape[1] ** 0.5
    accurate: Tensor = SURE * found.error * typical <= EXACT * _unit(found, code)
    return accurate


def _unit(found: Found, code: Code) -> Tensor:
    """(k,) range of the values."""
    bounds = code.bounds()
    if bounds is None:
        return found.features.abs().amax(1)
    return (bounds[1] - bounds[0]).min().to(found.features).expand(len(found))
