"""Whether an update is known to hold one example, as closed forms need it."""

from __future__ import annotations

from seepage.core.types import Exchange


def uncounted(exchange: Exchange) -> tuple[str, ...]:
    """Why a candidate is not claimed where nobody says how many examples there are; nothing where it is one.

    The equations of two examples that are nearly alike hold for their mean, within rounding.
    """
    if exchange.update.num_examples is not None:
        return ()
    return ("How many examples the update holds is not known, so the candidate is not claimed.",)
