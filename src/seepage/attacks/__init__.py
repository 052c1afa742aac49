"""Attacks, one file each. ATTACKS maps a name to the function that builds it with its defaults."""

from collections.abc import Callable

from seepage.attacks.analytic_extraction import analytic_extraction
from seepage.attacks.base import Attack, PerUpdateAttack
from seepage.attacks.prior_only import prior_only

ATTACKS: dict[str, Callable[..., Attack]] = {
    "prior_only": prior_only,
    "analytic_extraction": analytic_extraction,
}

__all__ = ["ATTACKS", "Attack", "PerUpdateAttack"]
