"""Columns of a gradient that were taken out as a whole, as Soteria does with the inputs that show most.

Every reading then has a 0 there, which lies on the grid, and no row says otherwise. What tells is the
backward signal: of a single step the server can compute it, and examples without some of their values do not
send what was received. Black borders, which empty whole columns too, leave the signals as they are.
"""

from __future__ import annotations

from torch import nn

from seepage.attacks.reading.peeling.loop import Peeling
from seepage.core.types import Knowledge
from seepage.models.signals import draws_chances

MASKED = (
    "None is claimed: whatever is 0 at the inputs whose columns are empty does not send the signals that "
    "were received, so those columns may have been taken out of the update."
)


def may_be_masked(peeling: Peeling, model: nn.Module, known: Knowledge) -> bool:
    """Whether columns are empty, and nothing that was read sends in one step what was received."""
    if len(peeling.found) or draws_chances(model, known.local):
        return False
    return bool((peeling.residual.weight == 0).all(0).any())
